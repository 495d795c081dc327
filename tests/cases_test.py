#!/usr/bin/env python3
"""Holds tests/cases.json, which says what became of each public bug report, against the tests there are.

    cases_test.py TEST_BINARY...

Every id of the log is there, every test that is named exists, and every test named after an id is in
the table. A case without a test says why it cannot apply.
"""
import json
import pathlib
import re
import subprocess
import sys

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


def main(binaries):
    table = json.loads((HERE / "cases.json").read_text())
    known = set().union(*map(tests_of, binaries))
    known |= {f"tools_cli: {name}" for name in re.findall(r"def (test_\w+)", (HERE / "tools_cli_test.py").read_text())}
    assert len(LOG) == 122
    mistakes = list(mistakes_of(table, known))
    print("\n".join(mistakes) or f"{len(table)} cases, {sum('tests' in e for e in table.values())} of them with tests.")
    if mistakes:
        sys.exit(1)
    self_test(table, known)


if __name__ == "__main__":
    main(sys.argv[1:])
