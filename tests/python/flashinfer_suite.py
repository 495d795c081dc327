"""Runs FlashInfer's own tests against heddle.flashinfer and counts. Not part of CI: FlashInfer's files are not here.

    git clone https://github.com/flashinfer-ai/flashinfer .deps/flashinfer
    PYTHONPATH=build/python python tests/python/flashinfer_suite.py .deps/flashinfer --sample 200
    PYTHONPATH=build/python python tests/python/flashinfer_suite.py .deps/flashinfer --cpu

Each file runs in a process of its own under flashinfer_plugin.py, which says how tests are chosen and counted. --cpu
needs no GPU. It takes tests of few products only, for the CPU device is slow. The table and the JSON go to --out.
Needs PyTorch, pytest, SciPy and einops. Exit code 1 where a test failed or ran out of time.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
FILES = ["batch_decode_kernels", "batch_prefill_kernels", "tensor_cores_decode", "sliding_window", "batch_attention",
         "shared_prefix_kernels", "block_sparse", "page", "non_contiguous_prefill", "non_contiguous_decode",
         "logits_cap", "attention_sink", "hopper", "batch_invariant_fa2"]
OUTCOMES = ["passed", "failed", "refused", "skipped", "timeout"]


def run_file(name, given, out):
    """The plugin's JSON of one file, or why there is none."""
    test = given.flashinfer / "tests" / "attention" / f"test_{name}.py"
    if not test.exists():
        return {"error": f"{test} is not there"}
    path = out / f"{name}.json"
    if given.keep and path.exists() and (found := json.loads(path.read_text())).get("collected"):
        return found
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", "-p", "flashinfer_plugin",
               "--noconftest", "--rootdir", str(given.flashinfer), "--import-mode=importlib", str(test),
               f"--heddle-out={path}", f"--heddle-sample={given.sample}", f"--heddle-seed={given.seed}",
               f"--heddle-seconds={given.seconds}", *(["-k", given.only] if given.only else [])]
    if given.cpu:
        command += ["--heddle-cpu", f"--heddle-work={given.work}"]
    paths = [str(HERE), str(given.flashinfer), os.environ.get("PYTHONPATH", "")]
    log = out / f"{name}.log"
    with open(log, "w") as text:
        subprocess.run(command, stdout=text, stderr=subprocess.STDOUT,
                       env={"HEDDLE_CACHE_DIR": str(out / "cache"), **os.environ, "PYTHONDONTWRITEBYTECODE": "1",
                            "PYTHONPATH": os.pathsep.join(paths)})
    if not path.exists() or not (found := json.loads(path.read_text())).get("collected"):
        return {"error": f"the file could not be run, {log} says why"}
    return found


def why(found, outcome):
    """Sentences of one outcome with their counts, numbers and tensors left out so that like ones meet."""
    words = collections.Counter(re.sub(r"tensor\(.*", "tensor", re.sub(r"\d+(\.\d+)?(e-?\d+)?", "N", test["word"]))
                                for test in found["tests"].values() if test["outcome"] == outcome)
    return words.most_common()


def table(results):
    lines = [f"{'file':28}" + "".join(f"{word:>9}" for word in OUTCOMES) + f"{'collected':>11}"]
    total = collections.Counter()
    for name, found in results.items():
        if "error" in found:
            lines.append(f"{name:28} {found['error']}")
            continue
        counts = collections.Counter(test["outcome"] for test in found["tests"].values())
        total.update(counts, collected=found["collected"])
        lines.append(f"{name:28}" + "".join(f"{counts[word]:9}" for word in OUTCOMES) + f"{found['collected']:11}")
    lines.append(f"{'all':28}" + "".join(f"{total[word]:9}" for word in OUTCOMES) + f"{total['collected']:11}")
    for outcome in ("failed", "refused", "skipped"):
        every = collections.Counter()
        for found in results.values():
            every.update(dict(why(found, outcome)) if "tests" in found else {})
        lines += ["", f"{outcome}:", *(f"{count:6}  {word}" for word, count in every.most_common())]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description="FlashInfer's tests against heddle.flashinfer")
    parser.add_argument("flashinfer", type=pathlib.Path, help="a checkout of FlashInfer")
    parser.add_argument("--cpu", action="store_true", help="on heddle's CPU device")
    parser.add_argument("--files", nargs="*", default=FILES, help="names without test_ and .py")
    parser.add_argument("--only", help="pytest's -k")
    parser.add_argument("--sample", type=int, default=60, help="at most so many tests a file; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=float, default=4e7, help="with --cpu: most products of a test")
    parser.add_argument("--seconds", type=int, default=120, help="time for one test")
    parser.add_argument("--keep", action="store_true", help="do not run files again whose counts are in --out")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/flashinfer"))
    given = parser.parse_args()
    given.flashinfer = given.flashinfer.resolve()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    results = {}
    for name in given.files:
        print(f"test_{name}.py", file=sys.stderr, flush=True)
        results[name] = run_file(name, given, out)
    text = table(results)
    (out / "suite.json").write_text(json.dumps(results, indent=1))
    (out / "suite.txt").write_text(text)
    print(text)
    bad = any("error" in found or any(t["outcome"] in ("failed", "timeout") for t in found["tests"].values())
              for found in results.values())
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
