#!/usr/bin/env python3
"""Holds tests/cases.json, which says what became of each public bug report, against the tests there are.

    cases_test.py TEST_BINARY...
    cases_test.py --run BUILD     runs those tests too, and prints each case with its tests and their results

Every id of the log is there, every test that is named exists, and every test named after an id is in
the table. A case without a test says why it cannot apply.
"""
import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).resolve().parent
LOG = [f"B{int(n):02}" for n in """
    1 2 4 5 7 8 10 11 13 14 16 17 19 20 22 23 25 26 28 29 31 32 34 35 37 38 40 41 43 44 46 47 49 50 52 53 55 56 58 59 61
    62 64 65 67 68 70 71 73 74 76 77 79 80 82 83 85 86 88 89 91 92 94 95 97 98 100 101 103 104 106 107 109 110 112 113
    115 116 118 119 121 122 124 125 127 128 130 131 133 134 136 137 139 140 142 143 145 146 148 149 151 152 154 155 157
    158 160 161 163 164 166 167 169 170 172 173 175 176 178 179 181 182""".split()]


def tests_of(binary):
    # Catch2 2 gives their number as its exit code; Catch2 3 has another spelling.
    for words in (["--list-test-names-only"], ["--list-tests", "--verbosity", "quiet"]):
        result = subprocess.run([binary, *words], capture_output=True, text=True, timeout=60)
        names = {line.strip() for line in result.stdout.splitlines() if line.strip()}
        if names:
            return names
    sys.exit(f"{binary} lists no tests: {result.stdout}{result.stderr}")


def mistakes_of(table, known):
    """One sentence for each thing that is wrong."""
    for case in LOG:
        if case not in table:
            yield f"{case} is missing."
    for case, entry in table.items():
        if case not in LOG:
            yield f"{case} is no id of the log."
        if set(entry) - {"fault", "from", "tests", "why_not", "note"} or not entry.get("fault"):
            yield f"{case} has a key that nobody reads, or no fault."
        if bool(entry.get("tests")) == bool(entry.get("why_not")):
            yield f"{case} needs tests, or one line why it cannot apply, and not both."
        for test in entry.get("tests", []):
            if test not in known:
                yield f'{case} names a test that does not exist: "{test}".'
    for test in sorted(known):
        named = re.match(r"(B\d+) ", test)
        if named and test not in table.get(named[1], {}).get("tests", []):
            yield f'The test "{test}" is not in the table.'


def self_test(table, known):
    """Each rule must find a fault that is put in."""
    some = next(case for case in table if table[case].get("tests"))
    for spoil in (lambda t: t.pop(some), lambda t: t[some].pop("tests"), lambda t: t[some].update(tests=["no such test"]),
                  lambda t: t.update(B03=t[some]), lambda t: t[some].update(why_not="both"), lambda t: t[some].pop("fault")):
        spoiled = json.loads(json.dumps(table))
        spoil(spoiled)
        if not list(mistakes_of(spoiled, known)):
            sys.exit("A fault that was put into the table was not found.")


def results_of(binary, names):
    """What became of each of these tests of one Catch2 binary."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, found = pathlib.Path(folder, "names"), pathlib.Path(folder, "found.xml")
        wanted.write_text("".join(name.replace(",", "\\,").replace("[", "\\[") + "\n" for name in sorted(names)))
        words = [binary.resolve(), "--input-file", wanted, "--reporter", "xml", "--out", found]
        result = subprocess.run(words, capture_output=True, text=True, cwd=HERE.parent)
        if result.returncode == 77:  # tests/gpu_main.cc
            return dict.fromkeys(names, result.stdout.strip())
        cases = xml.etree.ElementTree.parse(found).iter("TestCase")
        return {case.get("name"): result_of(case) for case in cases}


def result_of(case):
    """passed, failed, or "skipped: ..." as a WARN of the test says it; Catch2 2 has no SKIP."""
    warnings = [(warning.text or "").strip() for warning in case.iter("Warning")]
    skipped = [warning for warning in warnings if warning.startswith("skipped")]
    passed = case.find("OverallResult").get("success") == "true"
    return "failed" if not passed else skipped[0] if skipped else "passed"


def cli_results(command, names):
    result = subprocess.run([sys.executable, HERE / "tools_cli_test.py", command, "-v", *(w for n in names for w in ("-k", n))],
                            capture_output=True, text=True)
    words = {"ok": "passed", "FAIL": "failed", "ERROR": "failed"}
    return {f"tools_cli: {name}": words.get(word, word)
            for name, word in re.findall(r"(?m)^(test_\w+) .*\.\.\. (.*)$", result.stderr)}


def run(table, build):
    """{(test, where it ran): result} of every test that the table names; some run on the CPU device and on a GPU."""
    names = {name for entry in table.values() for name in entry.get("tests", [])}
    results = {}
    for room, binary in binaries_of(build).items():
        of_binary = names & tests_of(binary)
        found = results_of(binary, of_binary) if of_binary else {}
        results |= {(name, room): result for name, result in found.items()}
    cli = [name.removeprefix("tools_cli: ") for name in names if name.startswith("tools_cli: ")]
    return results | {(name, "tools"): result for name, result in cli_results(build / "heddle", cli).items()}


def print_results(table, results):
    """A failed test, or one that no run reached, ends it with 1."""
    counts = collections.Counter()
    for case, entry in sorted(table.items(), key=lambda item: int(item[0][1:])):
        if "why_not" in entry:
            print(f"{case:<5} {'-':<8} no test  {textwrap.shorten(entry['why_not'], 110, placeholder=' ...')}")
        for test in entry.get("tests", []):
            found = {room: result.split(":")[0] for (name, room), result in results.items() if name == test}
            for room, word in found.items() or {"-": "missing"}.items():
                counts[word] += 1
                print(f"{case:<5} {room:<8} {word:<8} {test}")
    print(f"\n{len(table)} cases, {sum('why_not' in e for e in table.values())} without a test; runs of the others: "
          + ", ".join(f"{count} {word}" for word, count in sorted(counts.items())) + ".")
    for reason in sorted({result for result in results.values() if result.startswith("skipped:")}):
        print(reason)
    return counts["failed"] + counts["missing"] > 0


def binaries_of(build):
    return {name: build / f"heddle_{name}_tests" for name in ("runtime", "planner", "engine", "mock", "gpu")}


def main(words):
    table = json.loads((HERE / "cases.json").read_text())
    runs = words[0] == "--run"
    binaries = binaries_of(pathlib.Path(words[1])).values() if runs else words
    known = set().union(*map(tests_of, binaries))
    known |= {f"tools_cli: {name}" for name in re.findall(r"def (test_\w+)", (HERE / "tools_cli_test.py").read_text())}
    assert len(LOG) == 122
    mistakes = list(mistakes_of(table, known))
    print("\n".join(mistakes) or f"{len(table)} cases, {sum('tests' in e for e in table.values())} of them with tests.")
    if mistakes:
        sys.exit(1)
    self_test(table, known)
    if runs:
        sys.exit(print_results(table, run(table, pathlib.Path(words[1]))))


if __name__ == "__main__":
    main(sys.argv[1:])
