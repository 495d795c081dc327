#!/usr/bin/env python3
"""How many lines of the host code the tests run: a table by room, and the lines that nothing runs.

    coverage.py               builds into build-coverage, runs the tests, counts
    coverage.py --only-count  counts what earlier runs have left there

Fails below 90 % of all lines. Device code and the units rendered from templates are not counted: the
tests hold those against the reference. With plain gcov; HEDDLE_COVERAGE must have been built with GCC.
"""
import collections
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build-coverage"
ROOMS = ["engine", "planner", "variants", "runtime", "tools"]
WANTED = 0.9
JOBS = len(os.sched_getaffinity(0))


def build():
    subprocess.run(["cmake", "--preset", "coverage"], cwd=ROOT, check=True)
    subprocess.run(["cmake", "--build", BUILD], check=True)


def run_tests():
    for old in BUILD.rglob("*.gcda"):
        old.unlink()
    return subprocess.run(["ctest", "--test-dir", BUILD, "--output-on-failure", "--timeout", "7200"],
                          env={**os.environ, "HEDDLE_PATIENCE": "100"}).returncode


def gcov(note):
    """What gcov says of one object, each source with its lines."""
    result = subprocess.run(["gcov", "--json-format", "--stdout", note.name], cwd=note.parent, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"gcov {note}: {result.stderr}")
    return [source for line in result.stdout.splitlines() for source in json.loads(line)["files"]]


def count():
    """{file: {line: times}} of the host code; a header's lines and a template's count where any object runs them."""
    lines = collections.defaultdict(collections.Counter)
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for source in (source for sources in pool.map(gcov, sorted(BUILD.rglob("*.gcno"))) for source in sources):
            path = pathlib.Path(os.path.normpath(BUILD / source["file"]))
            if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in ROOMS:
                continue
            for line in source["lines"]:
                lines[str(path.relative_to(ROOT))][line["line_number"]] += line["count"]
    return lines


def ranges(numbers):
    """[1, 2, 3, 7] as "1-3, 7"."""
    found = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def row(name, counters):
    total, run = sum(map(len, counters)), sum(times > 0 for counter in counters for times in counter.values())
    print(f"{name:<32} {run:>6} of {total:>6}  {100 * run / max(total, 1):5.1f} %")
    return run / max(total, 1)


def report(lines):
    for room in ROOMS:
        row(room, [counter for file, counter in lines.items() if file.split("/")[0] == room])
    share = row("all", lines.values())
    print(f"\nFiles below {100 * WANTED:.0f} %, and their lines that nothing runs:")
    for file, counter in sorted(lines.items()):
        missing = [line for line, times in counter.items() if not times]
        if len(missing) > (1 - WANTED) * len(counter):
            row(file, [counter])
            print(f"    {ranges(missing)}")
    return share


def main(words):
    failed = 0
    if "--only-count" not in words:
        build()
        failed = run_tests()
    share = report(count())
    if share < WANTED or failed:
        sys.exit("The tests failed." if failed else f"Less than {100 * WANTED:.0f} % of the lines were run.")


if __name__ == "__main__":
    main(sys.argv[1:])
