"""A pytest plugin under which FlashInfer's own test files run against heddle.flashinfer; flashinfer_suite.py starts it.

It puts a module `flashinfer` in place: heddle.flashinfer's names under FlashInfer's module paths, the few helpers that
the tests import, and for every other name an object whose call is refused by that name. Of a file's tests it keeps a
sample of a fixed seed, spread evenly over the test functions, and counts what became of each:

  passed, failed, skipped   as pytest says
  refused                   heddle said no in a sentence (an UnsupportedError or an InputError), wherever in the test;
                            what a compiler or the driver refuses has failed
  timeout                   past --heddle-seconds
  unreached                 not begun before --heddle-until

Each outcome is written to --heddle-out at once, a line each. Tests that the file already has are not run again: one that
kills the process, or leaves the GPU in an error, costs its own outcome alone, and the next process goes on behind it.

--heddle-cpu runs the tests without a GPU: every "cuda" becomes "cpu", and a test that captures a graph is skipped.
"""
import collections
import importlib
import importlib.util
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import types

import pytest

import flashinfer_on_cpu


# These want something refused that heddle does.
LIMITS_OF_FLASHINFER = {
    "test_batch_decode_rejects_unequal_kv_strides_nvfp4_contract": "wants K and V of unequal strides refused",
    "test_tensor_core_decode_rejects_mismatched_q_len": "wants several tokens a request refused without tensor cores",
}


class TimeOut(BaseException):
    """Not an Exception, so that no test takes it for one of its own."""


class Missing:
    """What heddle.flashinfer does not have. It may be imported and named in annotations; its use is refused."""

    def __init__(self, name):
        self._name = name

    def __call__(self, *args, **kwargs):
        import heddle
        raise heddle.UnsupportedError(f"{self._name} is not in heddle.flashinfer.")

    def __or__(self, other):  # in an annotation
        return self

    __ror__ = __or__

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self._name}.{name}")


class Module(types.ModuleType):
    """A module of FlashInfer's: what `names` has, then what heddle's module of this name has, then Missing."""

    def __init__(self, name, **names):
        super().__init__(name)
        self.__path__ = []
        self.__dict__.update(names)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        ours = f"heddle.{self.__name__}"
        try:
            return getattr(importlib.import_module(ours), name)
        except (ImportError, AttributeError):
            return Missing(f"{self.__name__}.{name}")


def utils(capability):
    """flashinfer.utils, as far as these tests ask it about the device."""
    is_90 = lambda *_: capability()[0] == 9  # noqa: E731
    no = lambda *_, **__: False  # noqa: E731
    return {"get_compute_capability": lambda *_: capability(), "has_flashinfer_jit_cache": lambda *_: True,
            "is_sm90a_supported": is_90, "is_sm100a_supported": no, "is_sm100f_supported": no,
            "is_sm110a_supported": no, "is_sm120a_supported": no, "is_sm121a_supported": no, "is_sm12x_supported": no,
            "is_fa3_backend_supported": lambda *_, **__: is_90(), "is_fa3_prefill_head_dim_supported": lambda *_: True,
            "GPUArchitectureError": type("GPUArchitectureError", (RuntimeError,), {})}


def install(capability):
    """Puts the module `flashinfer` and its parts in place."""
    import torch

    import heddle.flashinfer
    parts = {"": {}, ".decode": {}, ".prefill": {}, ".cascade": {}, ".sparse": {}, ".page": {}, ".pod": {},
             ".attention": {}, ".utils": utils(capability), ".quantization": {}, ".fp4_quantization": {},
             ".quantization.nvfp4_quantization_utils": {}, ".jit": {"MissingJITCacheError": RuntimeError},
             ".jit.utils": {"filename_safe_dtype_map": {torch.float16: "f16", torch.bfloat16: "bf16"}},
             ".jit.attention": {}, ".jit.attention.variants": {
                 "attention_sink_decl": getattr(heddle.flashinfer, "attention_sink_decl", None)}}
    for path, names in parts.items():
        module = sys.modules["flashinfer" + path] = Module("flashinfer" + path, **names)
        if path:
            parent, _, own = ("flashinfer" + path).rpartition(".")
            setattr(sys.modules[parent], own, module)


def skip_other_pythons():
    """A test that starts another Python would import another flashinfer there."""
    run = subprocess.run

    def guarded(command, *args, **kwargs):
        if isinstance(command, list) and command and command[0] == sys.executable:
            pytest.skip("starts a Python of its own, where flashinfer is not heddle's")
        return run(command, *args, **kwargs)
    subprocess.run = guarded


def pytest_addoption(parser):
    group = parser.getgroup("heddle")
    group.addoption("--heddle-cpu", action="store_true", help="no GPU: cuda becomes cpu")
    group.addoption("--heddle-sample", type=int, default=0, help="at most so many tests a file; 0: all")
    group.addoption("--heddle-seed", type=int, default=1, help="of the sample")
    group.addoption("--heddle-work", type=float, default=0, help="only tests of at most so many products; 0: all")
    group.addoption("--heddle-seconds", type=int, default=120, help="time for one test")
    group.addoption("--heddle-until", type=float, default=0, help="no test is begun after this time (of time.time())")
    group.addoption("--heddle-out", type=pathlib.Path, default=pathlib.Path("outcomes.jsonl"), help="a line an outcome")


def pytest_configure(config):
    import torch
    config.addinivalue_line("markers", "solo: FlashInfer's, for tests that want the GPU for themselves")
    on_cpu = config.getoption("--heddle-cpu")
    if on_cpu:
        flashinfer_on_cpu.install()
    install((lambda: (9, 0)) if on_cpu else torch.cuda.get_device_capability)
    skip_other_pythons()


def write(config, **line):
    with open(config.getoption("--heddle-out"), "a") as out:
        out.write(json.dumps(line) + "\n")


def key_of(item):
    return item.nodeid.rsplit("/", 1)[-1]


_ROWS = {"qo_len", "q_len", "seq_len", "M", "append_len", "unique_kv_len", "chunk_size"}
_KEYS = {"kv_len", "N", "shared_kv_len", "seq_len", "initial_seq_len", "historical_len"}
_HEADS = {"num_qo_heads", "num_heads", "gqa_group_size", "group_size", "num_kv_heads"}


def work_of(item):
    """Products of a test, roughly, from its parameters: batch * rows * keys * heads * head_dim."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    numbers = {name: value for name, value in given.items() if isinstance(value, int)}
    most = lambda names, otherwise: max([numbers[n] for n in names if n in numbers], default=otherwise)  # noqa: E731
    heads = most(_HEADS - {"num_kv_heads"}, 8)
    if {"group_size", "gqa_group_size"} & set(numbers):
        heads *= numbers.get("num_kv_heads", 1)
    decode = "decode" in item.name.split("[")[0] or given.get("stage") == "decode"
    pairs = given.get("seq_len_pairs")
    if "indptr_config" in given:
        qo, kv, _ = given["indptr_config"]
        pairs = [(kv[i + 1] - kv[i], qo[i + 1] - qo[i]) for i in range(len(qo) - 1)]
    cells = sum(kv * qo for kv, qo in pairs) if pairs is not None else (
        most({"batch_size"}, 1) * (1 if decode else most(_ROWS, 1)) * most(_KEYS, 128))
    return cells * heads * most({"head_dim"}, 128)


def sample_of(items, size, seed):
    """Of every test function alike, in an order whose beginning is a sample as well."""
    rng = random.Random(seed)
    of_function = collections.defaultdict(list)
    for item in items:
        of_function[item.function.__name__].append(item)
    for tests in of_function.values():
        rng.shuffle(tests)
    longest = max(map(len, of_function.values()), default=0)
    rounds = [tests[i] for i in range(longest) for tests in of_function.values() if i < len(tests)]
    return rounds[:size] if size else rounds


def already_run(path):
    """Tests with an outcome. One that was begun and has none took its process with it."""
    begun, done = [], set()
    for text in path.read_text().splitlines() if path.exists() else []:
        line = json.loads(text)
        if "begun" in line:
            begun.append(line["begun"])
        elif "test" in line:
            done.add(line["test"])
    return done, [test for test in begun if test not in done]


def pytest_collection_modifyitems(config, items):
    limit = config.getoption("--heddle-work")
    small = [item for item in items if not limit or work_of(item) <= limit]
    kept = sample_of(small, config.getoption("--heddle-sample"), config.getoption("--heddle-seed"))
    write(config, collected=len(items), within_work=len(small), kept=len(kept))
    done, died = already_run(config.getoption("--heddle-out"))
    for test in died:
        write(config, test=test, outcome="failed", word="The process ended in this test.")
    for item in kept:
        if item.function.__name__ in LIMITS_OF_FLASHINFER:
            item.add_marker(pytest.mark.skip(f"{LIMITS_OF_FLASHINFER[item.function.__name__]}, which heddle does"))
    items[:] = [item for item in kept if key_of(item) not in done | set(died)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    until = item.config.getoption("--heddle-until")
    if until and time.time() > until:
        write(item.config, test=key_of(item), outcome="unreached", word="")
        return True  # pytest has nothing to do
    write(item.config, begun=key_of(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    def expired(*_):
        raise TimeOut
    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(item.config.getoption("--heddle-seconds"))
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome_of(report, error):
    import heddle
    if isinstance(error, (heddle.UnsupportedError, heddle.InputError)):
        return "refused", str(error)
    if isinstance(error, TimeOut):
        return "timeout", ""
    return report.outcome, f"{type(error).__name__}: {error}".strip().splitlines()[0][:300] if error else ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call" or report.outcome != "passed":
        outcome, word = outcome_of(report, call.excinfo.value if call.excinfo else None)
        write(item.config, test=key_of(item), outcome=outcome, word=word, seconds=round(call.duration, 2))
        if outcome == "failed" and not item.config.getoption("--heddle-cpu"):
            leave_a_broken_gpu(item.config)
    return report


def leave_a_broken_gpu(config):
    """After an illegal access every later call of this process fails as well."""
    import torch
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        write(config, broken=str(error).splitlines()[0])
        os._exit(3)


if importlib.util.find_spec("heddle") is None:
    raise pytest.UsageError("The package heddle is not on PYTHONPATH; build it and add build/python.")
