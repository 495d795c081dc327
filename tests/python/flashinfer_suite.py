"""Runs FlashInfer's own tests against heddle.flashinfer and counts. Not part of CI: FlashInfer's files are not here.

    PYTHONPATH=build/python python tests/python/flashinfer_suite.py --sample 200 --jobs 14 --within 200
    PYTHONPATH=build/python python tests/python/flashinfer_suite.py --cpu

The first run fetches FlashInfer's tests, at the commit below, into .deps/flashinfer, which git ignores. Each file runs
in a process of its own under flashinfer_plugin.py, which says how tests are chosen and counted. --cpu needs no GPU. It
takes tests of few products only, for the CPU device is slow. The table and the JSON go to --out; the share is of the
tests in scope: those that passed, failed or ran out of time. Needs PyTorch, pytest, SciPy and einops. Exit code 1 where
a test failed or ran out of time.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
FETCHED = HERE.parents[1] / ".deps" / "flashinfer"
SOURCE, COMMIT = "https://github.com/flashinfer-ai/flashinfer", "fb28d7242b3506a2348265962041acc1fb56cca4"
FILES = ["batch_decode_kernels", "batch_prefill_kernels", "tensor_cores_decode", "sliding_window", "batch_attention",
         "shared_prefix_kernels", "block_sparse", "page", "non_contiguous_prefill", "non_contiguous_decode",
         "logits_cap", "attention_sink", "hopper", "batch_invariant_fa2"]
OUTCOMES = ["passed", "failed", "refused", "skipped", "timeout", "unreached"]
MOST_PROCESSES = 20  # of one file, where tests end theirs


def fetch(folder, source):
    """FlashInfer's folder tests, of that one commit."""
    git = ["git", "-C", str(folder)]
    folder.mkdir(parents=True)
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "fetch", "-q", "--depth", "1", "--filter=blob:none", source, COMMIT], check=True)
    subprocess.run([*git, "checkout", "-q", "FETCH_HEAD", "--", "tests", "LICENSE"], check=True)


def command_of(name, given, path):
    test = given.flashinfer / "tests" / "attention" / f"test_{name}.py"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", "-p", "flashinfer_plugin",
               "--noconftest", "--rootdir", str(given.flashinfer), "--import-mode=importlib", str(test),
               f"--heddle-out={path}", f"--heddle-sample={given.sample}", f"--heddle-seed={given.seed}",
               f"--heddle-seconds={given.seconds}", f"--heddle-until={given.until}",
               *(["-k", given.only] if given.only else [])]
    return command + (["--heddle-cpu", f"--heddle-work={given.work}"] if given.cpu else [])


def outcomes_of(path):
    """The plugin's lines, put together."""
    found = {"tests": {}, "broken": 0}
    for text in path.read_text().splitlines() if path.exists() else []:
        line = json.loads(text)
        found["broken"] += "broken" in line
        found.update({word: line[word] for word in ("collected", "within_work", "kept") if word in line})
        if "test" in line:
            found["tests"][line.pop("test")] = line
    return found


def run_file(name, given, out):
    """The outcomes of one file, or why there are none."""
    path, log = out / f"{name}.jsonl", out / f"{name}.log"
    if given.keep and (found := outcomes_of(path)).get("kept", -1) == len(found["tests"]):
        return found
    path.unlink(missing_ok=True)
    paths = [str(HERE), str(given.flashinfer), os.environ.get("PYTHONPATH", "")]
    environment = {"HEDDLE_CACHE_DIR": str(out / "cache"), **os.environ, "PYTHONDONTWRITEBYTECODE": "1",
                   "PYTHONPATH": os.pathsep.join(paths)}
    begin = time.monotonic()
    with open(log, "w") as text:
        for _ in range(MOST_PROCESSES):
            subprocess.run(command_of(name, given, path), stdout=text, stderr=subprocess.STDOUT, env=environment)
            found = outcomes_of(path)
            if found.get("kept", -1) <= len(found["tests"]):
                break
    if not found.get("collected"):
        return {"error": f"the file could not be run, {log} says why"}
    print(f"test_{name}.py: {len(found['tests'])} tests, {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return found


def why(found, outcome):
    """Sentences of one outcome with their counts, numbers and tensors left out so that like ones meet."""
    words = collections.Counter(re.sub(r"tensor\(.*", "tensor", re.sub(r"\d+(\.\d+)?(e-?\d+)?", "N", test["word"]))
                                for test in found["tests"].values() if test["outcome"] == outcome)
    return words.most_common()


def line_of(name, counts, collected):
    in_scope = counts["passed"] + counts["failed"] + counts["timeout"]
    share = f"{counts['passed'] / in_scope:.1%}" if in_scope else "-"
    return f"{name:24}" + "".join(f"{counts[word]:10}" for word in OUTCOMES) + f"{collected:11}{share:>8}"


def table(results):
    lines = [f"{'file':24}" + "".join(f"{word:>10}" for word in OUTCOMES) + f"{'collected':>11}{'share':>8}"]
    total, collected = collections.Counter(), 0
    for name, found in results.items():
        if "error" in found:
            lines.append(f"{name:24} {found['error']}")
            continue
        counts = collections.Counter(test["outcome"] for test in found["tests"].values())
        total.update(counts)
        collected += found["collected"]
        lines.append(line_of(name, counts, found["collected"]))
    lines.append(line_of("all", total, collected))
    for outcome in ("failed", "timeout", "refused", "skipped"):
        every = collections.Counter()
        for found in results.values():
            every.update(dict(why(found, outcome)) if "tests" in found else {})
        lines += ["", f"{outcome}:", *(f"{count:6}  {word}" for word, count in every.most_common())]
    failed = [f"{name}  {test}: {line['word']}" for name, found in results.items() if "tests" in found
              for test, line in found["tests"].items() if line["outcome"] in ("failed", "timeout")]
    return "\n".join([*lines, "", "each failed test:", *failed]) + "\n"


def arguments():
    parser = argparse.ArgumentParser(description="FlashInfer's tests against heddle.flashinfer")
    parser.add_argument("flashinfer", type=pathlib.Path, nargs="?", default=FETCHED, help="a checkout of FlashInfer")
    parser.add_argument("--source", default=SOURCE, help="what to fetch it from, where it is not there")
    parser.add_argument("--cpu", action="store_true", help="on heddle's CPU device")
    parser.add_argument("--files", nargs="*", default=FILES, help="names without test_ and .py")
    parser.add_argument("--only", help="pytest's -k")
    parser.add_argument("--sample", type=int, default=60, help="at most so many tests a file; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=float, default=4e7, help="with --cpu: most products of a test")
    parser.add_argument("--seconds", type=int, default=120, help="time for one test")
    parser.add_argument("--within", type=float, default=0, help="seconds after which no test is begun; 0: no limit")
    parser.add_argument("--jobs", type=int, default=1, help="files side by side")
    parser.add_argument("--keep", action="store_true", help="do not run files again whose counts are in --out")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/flashinfer"))
    return parser.parse_args()


def main():
    given = arguments()
    given.flashinfer = given.flashinfer.resolve()
    given.until = time.time() + given.within if given.within else 0
    if not given.flashinfer.exists():
        fetch(given.flashinfer, given.source)
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        results = dict(zip(given.files, pool.map(lambda name: run_file(name, given, out), given.files)))
    text = table(results)
    (out / "suite.json").write_text(json.dumps(results, indent=1))
    (out / "suite.txt").write_text(text)
    print(text)
    bad = any("error" in found or any(t["outcome"] in ("failed", "timeout") for t in found["tests"].values())
              for found in results.values())
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
