"""Engine, Variant, plan and run on the CPU device, with NumPy alone."""
import json
import subprocess
import sys
import threading

import numpy as np
import pytest

import heddle
import reference

HEADS = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 32}
MAXIMA = {"max_requests": 8, "max_qo_rows": 64, "max_kv_tokens": 4096}
QO, KV, LAST, PAGES = [0, 1, 4, 4, 24], [0, 3, 5, 6, 8], [8, 7, 3, 16], [5, 0, 2, 1, 7, 3, 6, 4]


class Step:
    """A batch of four requests over eight pages, bf16 as uint16."""

    def __init__(self, seed=1, rows=24):
        rng = np.random.default_rng(seed)
        self.q, self.k, self.v = (reference.bf16_bits(rng.standard_normal(shape)) for shape in
                                  ((rows, 4, 32), (8, 16, 2, 32), (8, 16, 2, 32)))
        self.o = np.full_like(self.q, 0x7FC0)
        self.lse = np.full((rows, 4), np.nan, np.float32)
        self.pages = np.array(PAGES, np.int32)

    def run(self, attention, workspace, **words):
        attention.run(workspace, self.q, self.k, self.v, self.o, kv_indices=self.pages, lse=self.lse, **words)

    def check(self, **words):
        q, k, v = (reference.from_bf16_bits(x) for x in (self.q, self.k, self.v))
        o, lse = reference.batch(q, QO, reference.paged(k, v, KV, LAST, self.pages), **words)
        reference.assert_close(reference.from_bf16_bits(self.o), o, 0.02)
        reference.assert_close(self.lse, lse, 2e-3)


def test_plan_and_run_a_built_in_variant(engine):
    attention = engine.attention(variant="causal", **HEADS)
    workspace = attention.workspace(**MAXIMA)
    summary = attention.plan(workspace, QO, KV, LAST)
    assert summary.num_qo_rows == 24 and summary.num_indices == 8 and sum(summary.items) > 0
    step = Step()
    step.run(attention, workspace)
    step.check(causal=True)


def test_ranges_of_keys_given_with_the_plan(engine):
    attention = engine.attention(variant="key_ranges", **HEADS)
    workspace = attention.workspace(**MAXIMA)
    rng, kv_lens = np.random.default_rng(4), [40, 23, 3, 32]
    first = rng.integers(0, 30, 24).astype(np.int32)
    end = np.concatenate([rng.integers(0, kv_len + 1, QO[r + 1] - QO[r]) for r, kv_len in enumerate(kv_lens)])
    attention.plan(workspace, QO, KV, LAST, first_keys=first, end_keys=end.tolist())
    step = Step()
    step.run(attention, workspace)

    def mask(r):
        rows, kv_pos = slice(QO[r], QO[r + 1]), np.arange(kv_lens[r])[None, :]
        return (kv_pos >= first[rows, None]) & (kv_pos < end[rows, None])

    step.check(mask=mask)
    with pytest.raises(heddle.InputError, match="end_keys has 0 entries"):
        attention.plan(workspace, QO, KV, LAST, first_keys=first)
    with pytest.raises(heddle.InputError, match="only the plan of a mask"):
        causal = engine.attention(variant="causal", **HEADS)
        causal.plan(causal.workspace(**MAXIMA), QO, KV, LAST, first_keys=first, end_keys=end)


@pytest.mark.parametrize("form", [tuple, lambda x: np.array(x, np.int32), lambda x: np.array(x, np.int64),
                                  lambda x: np.repeat(np.array(x, np.int32), 2)[::2]])
def test_lengths_in_any_form(engine, form):
    attention = engine.attention(variant="causal", **HEADS)
    workspace = attention.workspace(**MAXIMA)
    attention.plan(workspace, form(QO), form(KV), form(LAST))
    step = Step()
    step.run(attention, workspace)
    step.check(causal=True)


@pytest.mark.parametrize("form", ["dict", "text", "file", "Variant"])
def test_a_variant_of_your_own(engine, tmp_path, form):
    spec = {"name": "own", "params": {"cap": {"type": "f32", "default": 20.0}},
            "mask": {"causal": True, "window_left": 9},
            "hooks": {"logits_transform": "return params.cap * tanh(logit / params.cap);"}}
    path = tmp_path / "own.json"
    path.write_text(json.dumps(spec))
    given = {"dict": spec, "text": json.dumps(spec), "file": path, "Variant": heddle.Variant(spec)}[form]
    assert engine.register_variant(given).name == "own" and "own" in engine.variants
    attention = engine.attention(variant="own", **HEADS)
    assert attention.variant.params[0]["name"] == "cap"
    workspace = attention.workspace(**MAXIMA)
    attention.plan(workspace, QO, KV, LAST, params={"cap": 2.0})
    step = Step()
    step.run(attention, workspace, params={"cap": 2.0})
    step.check(causal=True, window_left=9, cap=2.0)


def test_a_variants_own_tensors(engine):
    engine.register_variant({"name": "sinks", "tensors": {"sinks": {"dtype": "f32", "shape": ["num_qo_heads"]}},
                             "hooks": {"initial_state": "return tensors.sinks[qo_head];"}})
    attention = engine.attention(variant="sinks", **HEADS)
    workspace = attention.workspace(**MAXIMA)
    attention.plan(workspace, QO, KV, LAST)
    step, sinks = Step(), np.array([0.5, -1, 2, 0], np.float32)
    step.run(attention, workspace, tensors={"sinks": sinks})
    step.check(sinks=sinks)


def test_a_mask_of_bits(engine):
    engine.register_variant({"name": "bits", "tensors": {"keep": {"dtype": "u32", "shape": ["1"]}},
                             "hooks": {"logits_mask": "return (tensors.keep[0] >> (kv_pos & 31)) & 1u;"}})
    attention = engine.attention(variant="bits", **HEADS)
    workspace = attention.workspace(**MAXIMA)
    attention.plan(workspace, QO, KV, LAST)
    step, bits = Step(), 0xB6F1A35D
    step.run(attention, workspace, tensors={"keep": np.array([bits], np.uint32)})
    step.check(mask=lambda r: np.array([[bits >> (p & 31) & 1 for p in range([40, 23, 3, 32][r])]], bool))


def test_ragged_keys_and_values(engine):
    attention = engine.attention(variant="causal", page_size=0, **HEADS)
    workspace = attention.workspace(**MAXIMA)
    step, kv = Step(), [0, 10, 13, 20, 60]
    k, v = step.k.reshape(128, 2, 32), step.v.reshape(128, 2, 32)
    attention.plan(workspace, QO, kv)
    attention.run(workspace, step.q, k, v, step.o)
    f = reference.from_bf16_bits
    o, _ = reference.batch(f(step.q), QO, lambda r: (f(k)[kv[r]:kv[r + 1]], f(v)[kv[r]:kv[r + 1]]), causal=True)
    reference.assert_close(f(step.o), o, 0.02)


def test_a_dense_page_table_and_hnd(engine):
    attention = engine.attention(variant="causal", **HEADS)
    workspace = attention.workspace(**MAXIMA)
    table = np.full((4, 5), -1, np.int32)
    for r in range(4):
        table[r, :KV[r + 1] - KV[r]] = PAGES[KV[r]:KV[r + 1]]
    attention.plan(workspace, QO, kv_lens=[40, 23, 3, 32], kv_table_stride=5)
    step = Step()
    hnd = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (step.k, step.v)]
    attention.run(workspace, step.q, *hnd, step.o, kv_indices=table, lse=step.lse, layout="HND")
    step.check(causal=True)
    with pytest.raises(heddle.InputError, match="6 entries apart, but plan.. was given kv_table_stride=5"):
        attention.run(workspace, step.q, *hnd, step.o, kv_indices=np.zeros((4, 6), np.int32), layout="HND")


def test_half_precision_and_ml_dtypes(engine):
    attention = engine.attention(variant="causal", q_dtype=np.float16, **HEADS)
    workspace = attention.workspace(**MAXIMA)
    attention.plan(workspace, QO, KV, LAST)
    step = Step()
    q, k, v = (reference.from_bf16_bits(x).astype(np.float16) for x in (step.q, step.k, step.v))
    o = np.empty_like(q)
    attention.run(workspace, q, k, v, o, kv_indices=step.pages)
    wanted, _ = reference.batch(q, QO, reference.paged(k, v, KV, LAST, step.pages), causal=True)
    reference.assert_close(o, wanted, 0.004)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    attention = engine.attention(variant="causal", **HEADS)
    workspace = attention.workspace(**MAXIMA)
    attention.plan(workspace, QO, KV, LAST)
    words = [x.view(ml_dtypes.bfloat16) for x in (step.q, step.k, step.v, step.o)]
    attention.run(workspace, *words, kv_indices=step.pages, lse=step.lse)
    step.check(causal=True)


def test_same_bits_and_a_read_only_input(engine):
    attention = engine.attention(variant="causal", **HEADS)
    workspace = attention.workspace(**MAXIMA)
    first, second = Step(), Step()
    second.q.flags.writeable = False
    for step in (first, second):
        attention.plan(workspace, QO, KV, LAST)
        step.run(attention, workspace)
    assert (first.o == second.o).all()
    first.o.flags.writeable = False
    with pytest.raises(heddle.InputError, match="Tensor o is read-only, but this call writes it"):
        first.run(attention, workspace)


def refusals(engine, attention, workspace, step):
    run = lambda **words: attention.run(*[words.pop(n, d) for n, d in (  # noqa: E731
        ("workspace", workspace), ("q", step.q), ("k", step.k), ("v", step.v), ("o", step.o))],
        **{"kv_indices": step.pages, **words})
    return [
        (lambda: run(kv_indices=None), "The plan reaches 8 page ids, but kv_indices was not given."),
        (lambda: run(kv_indices=step.pages[:5]), "kv_indices has 5 entries; the plan reads 8."),
        (lambda: run(kv_indices=step.pages.astype(np.int64)), "Tensor kv_indices has elements of 64 bits"),
        (lambda: run(q="x"), "q is a str, which is no array"),
        (lambda: run(q=step.q[:3]), "Tensor q has rows = 3; it needs at least 24."),
        (lambda: run(k=step.k.astype(np.float64)), "Tensor k has elements of 64 bits"),
        (lambda: run(layout="NDH"), 'layout is "NDH"; it must be "NHD"'),
        (lambda: run(tensors={"bias": step.lse}), 'Variant causal reads no tensor named "bias".'),
        (lambda: run(params={"cap": 1.0}), "cap"),
        (lambda: run(stream=4096), "run() was given a stream, but this Engine runs on the CPU device, which has none."),
        (lambda: run(stream="0"), "stream is '0'; give an integer"),
        (lambda: run(workspace=engine.attention(**HEADS).workspace(**MAXIMA)), "made by another Attention"),
        (lambda: attention.plan(workspace, [0, 1.5], [0, 1], [1]), "qo_indptr[1] is 1.5; it must be a 32-bit integer."),
        (lambda: attention.plan(workspace, [0, 2 ** 40], [0, 1], [1]), "does not fit 32 bits"),
        (lambda: attention.plan(workspace, np.zeros((2, 2), np.int32), [0], []), "qo_indptr has 2 axes; it needs one."),
        (lambda: attention.plan(workspace, np.zeros(2, np.float32), [0], []), "it needs int32 or int64."),
        (lambda: attention.plan(workspace, [0, 1], [0, 1], [17]), "Request 0: last_page_len is 17"),
        (lambda: engine.attention(variant="casual", **HEADS), "causal"),
        (lambda: engine.attention(**{**HEADS, "num_kv_heads": 3}), "num_qo_heads 4 is not a multiple"),
        (lambda: engine.attention(q_dtype="f64", **HEADS), "dtype f64 is not one that q, k and v can have"),
        (lambda: engine.register_variant({"name": "x", "hook": {}}), "hook"),
        (lambda: engine.register_variant(3), "A variant was given as a int"),
        (lambda: heddle.Engine("tpu"), 'device is "tpu"'),
        (lambda: heddle.cache.warm([], dir="x"), "make the engine with cache_dir"),
    ]


def test_wrong_input_is_a_value_error_with_a_sentence(engine):
    attention = engine.attention(variant="causal", **HEADS)
    workspace = attention.workspace(**MAXIMA)
    attention.plan(workspace, QO, KV, LAST)
    step = Step()
    for call, words in refusals(engine, attention, workspace, step):
        with pytest.raises(ValueError) as caught:
            call()
        assert isinstance(caught.value, heddle.Error) and words in str(caught.value), str(caught.value)
    attention.plan(workspace, QO, KV, LAST)  # the engine stays usable
    step.run(attention, workspace)
    step.check(causal=True)


def test_unsupported_is_its_own_class(engine):
    with pytest.raises(NotImplementedError, match="head_dim 100 is not supported"):
        engine.attention(num_qo_heads=1, num_kv_heads=1, head_dim=100)
    with pytest.raises(TypeError):
        engine.attention(num_heads=4)


def test_a_hook_that_does_not_compile(engine):
    engine.register_variant({"name": "broken", "hooks": {"logits_transform": "return logit +;"}})
    with pytest.raises(heddle.CompileError, match="logits_transform"):
        engine.attention(variant="broken", **HEADS)


def test_threads_with_a_workspace_each(engine):
    attention = engine.attention(variant="causal", **HEADS)
    steps = [Step(seed) for seed in range(4)]

    def work(step):
        workspace = attention.workspace(**MAXIMA)
        for _ in range(20):
            attention.plan(workspace, QO, KV, LAST)
            step.run(attention, workspace)

    threads = [threading.Thread(target=work, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for step in steps:
        step.check(causal=True)


def test_the_cache(tmp_path):
    engine = heddle.Engine("cpu", cache_dir=str(tmp_path))
    engine.register_variant({"name": "kept", "hooks": {"logits_transform": "return 0.5f * logit;"}})
    made = heddle.cache.warm([{"variant": "kept", **HEADS}, heddle.AttentionConfig(variant="causal", **HEADS)],
                             engine=engine)
    assert [kernel.origin for kernel in made] == ["compiled", "built in"]
    assert heddle.cache.directory(str(tmp_path)) and len(heddle.cache.entries(str(tmp_path))) == 1
    assert heddle.cache.clear(str(tmp_path)) == 1 and heddle.cache.entries(str(tmp_path)) == []


def test_kernels_for_a_gpu_that_is_not_here(tmp_path):
    config = {"variant": "causal", **HEADS, "max_qo_len": 1}
    try:
        made = heddle.cache.warm([config], archs=["sm_90a"], dir=str(tmp_path))
    except heddle.UnsupportedError as error:
        pytest.skip(str(error))  # NVRTC is not found
    assert [(kernel.kernel, kernel.arch) for kernel in made] == [("decode", "sm_90a")] and made[0].registers > 0
    assert [kernel.origin for kernel in heddle.cache.warm([config], archs=["sm_90a"], dir=str(tmp_path))] == ["disk"]
    with pytest.raises(heddle.Error, match="sm_12"):
        heddle.cache.warm([config], archs=["sm_12"], dir=str(tmp_path))


def test_a_declared_maximum_of_requests_holds():
    config = heddle.AttentionConfig(variant="causal", **HEADS, max_requests=2)
    assert config.max_requests == 2 and heddle.AttentionConfig(variant="causal", **HEADS).max_requests == 0
    attention = heddle.Engine("cpu").attention(config)
    attention.workspace(**{**MAXIMA, "max_requests": 2})
    with pytest.raises(heddle.InputError, match="max_requests is 3; this Attention was made for max_requests = 2."):
        attention.workspace(**{**MAXIMA, "max_requests": 3})


def test_import_brings_no_framework():
    code = "import sys, heddle; heddle.Engine('cpu'); assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
