#!/usr/bin/env python3
"""Holds the table of rooms against every #include, and the few rules that come with it.

    check_rooms.py [ROOT]     exit 0: the arrows hold; 1: each breach is printed, file and line first
    check_rooms.py --self-test

Each line of ROOMS is a row of the README's map: a room and the rooms that it may include.
"""
import pathlib
import re
import sys
import tempfile

ROOMS = {
    "engine": {"engine", "planner", "variants", "templates", "runtime"},
    "planner": {"planner"},
    "variants": {"variants"},
    "templates": {"templates"},
    "runtime": {"runtime"},
    "tools": {"tools", "engine", "planner", "variants", "templates", "runtime"},
    "tests": {"tests", "tools", "engine", "planner", "variants", "templates", "runtime"},
}
# The words that every host room stands on.
FLOOR = {"engine/error.h", "engine/types.h", "templates/abi.h"}
# What one room may see of another beyond the table: the reference calls the hooks that the skeletons
# call, with the same record of where they stand.
ALSO = {"variants": {"templates/hook_context.h"}}
# Headers with a place of their own.
CUDA = re.compile(r"^(cuda|nvrtc|cuda_\w+|nvrtc_\w+)\.h$")
JSON = re.compile(r"^nlohmann/(?!json_fwd)")
DOORS = {
    "engine": "engine/engine.h",
    "planner": "planner/plan.h",
    "variants": "variants/variant.h",
    "templates": "templates/abi.h",
    "runtime": "runtime/kernel_cache.h",
}
STORY_LINES = range(10, 26)
TOP = set(ROOMS) | {".ci", ".clang-format", ".clang-tidy", ".clangd", ".editorconfig", ".gitignore",
                    "CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md", "pyproject.toml"}
IGNORED_TOP = re.compile(r"^(\.git|build.*|\.deps|\.peers|\.whl|out|shared|__pycache__|\.cache)$")
SOURCES = {".h", ".cc", ".cuh", ".cu"}
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)')


def breach_of_include(path, quoted, angled):
    """What is wrong with one include of one file (paths relative to the root), or None."""
    room, named = path.parts[0], quoted or angled
    if CUDA.match(named):
        return None if room == "runtime" else f"{named} belongs to the room runtime alone"
    if JSON.match(named):
        return None if path.suffix == ".cc" else f"{named} is slow to compile: only a .cc may include it"
    if not quoted:
        return f"<{named}> names a room: write it in quotes" if named.split("/")[0] in ROOMS and "/" in named else None
    target = named.split("/")[0]
    if "/" not in named or target not in ROOMS:
        return f'"{named}" does not start at the repository\'s root with a room'
    if room == "templates" and target != "templates":
        return f'templates is device code and stands alone, "{named}" is outside it'
    if named in FLOOR or target in ROOMS[room] or named in ALSO.get(room, ()):
        return None
    allowed = ", ".join(sorted(ROOMS[room]))
    return f'{room} may not include {target} ("{named}"); it may include {allowed} and the floor'


def sources(root):
    for room in ROOMS:
        for file in sorted((root / room).rglob("*")):
            if file.suffix in SOURCES and file.is_file():
                yield file.relative_to(root)


def check_includes(root):
    for path in sources(root):
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            found = INCLUDE.match(line)
            problem = found and breach_of_include(path, *found.groups())
            if problem:
                yield f"{path}:{number}: {problem}"
            if found and found.group(1) and not (root / found.group(1)).exists():
                yield f"{path}:{number}: there is no file {found.group(1)}"


def check_doors(root):
    """Each room has one door file, which opens with the room's story."""
    for room, door in DOORS.items():
        if not (root / door).exists():
            yield f"{door}:1: the room {room} has no door file"
            continue
        story = 0
        for line in (root / door).read_text().splitlines():
            if not line.startswith("//"):
                break
            story += 1
        if story not in STORY_LINES:
            yield (f"{door}:1: the story of the room has {story} lines; "
                   f"{STORY_LINES[0]} to {STORY_LINES[-1]} are asked for")


def check_top(root):
    for entry in sorted(root.iterdir()):
        if entry.name not in TOP and not IGNORED_TOP.match(entry.name):
            yield f"{entry.name}:1: not one of the repository's top-level entries; put it into a room"


def breaches(root):
    return [*check_top(root), *check_doors(root), *check_includes(root)]


def self_test():
    """A tree that keeps every rule passes; each broken rule is found, once, where it is."""
    good = {door: "// story\n" * 12 + "#pragma once\n" for door in DOORS.values()}
    good |= {"engine/types.h": '#include "templates/abi.h"\n', "README.md": "",
             "planner/plan.cc": '#include "planner/plan.h"\n#include "engine/types.h"\n#include <vector>\n',
             "runtime/driver.cc": "#include <cuda.h>\n", "variants/spec.cc": "#include <nlohmann/json.hpp>\n",
             "tools/heddle.cc": '#include "engine/engine.h"\n'}
    wrong = {
        "planner/balance.cc": ('#include "engine/engine.h"\n', "planner may not include engine"),
        "runtime/nvrtc.cc": ('#include "variants/variant.h"\n', "runtime may not include variants"),
        "engine/glue.cc": ('#include "tools/json.h"\n', "no file|engine may not include tools"),
        "templates/decode.cuh": ('#include "engine/types.h"\n', "stands alone"),
        "planner/cost.cc": ("#include <cuda.h>\n", "runtime alone"),
        "variants/spec.h": ("#include <nlohmann/json.hpp>\n", "only a .cc"),
        "engine/local.cc": ('#include "types.h"\n', "repository's root"),
        "engine/angled.cc": ("#include <planner/plan.h>\n", "write it in quotes"),
        "planner/plan.h": ("// short\n#pragma once\n", "story of the room has 1 lines"),
        "docs/page.md": ("", "top-level"),
    }

    def found(files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return breaches(root)

    failures = [f"a good tree is refused: {line}" for line in found(good)]
    for name, (text, words) in wrong.items():
        lines = found(good | {name: text})
        if not lines or not all(re.search(words, line) for line in lines[:1]):
            failures.append(f"{name}: expected '{words}', found {lines}")
    return failures


def main():
    if sys.argv[1:] == ["--self-test"]:
        problems = self_test()
    else:
        root = pathlib.Path(sys.argv[1]) if sys.argv[1:] else pathlib.Path(__file__).resolve().parent.parent
        problems = breaches(root)
    for line in problems:
        print(line)
    print(f"rooms: {len(problems)} breaches" if problems else "rooms: the arrows hold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
