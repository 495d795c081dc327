"""_core.pyi names what the extension has, with the same words."""
import ast
import pathlib
import re

import heddle
from heddle import _core


def public(names):
    return {name for name in names if not name.startswith("_") or name in ("__init__", "__version__")}


def stub_of(node):
    """name -> words of a function, or None for a property."""
    found = {}
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            is_property = any(ast.unparse(d) == "property" for d in item.decorator_list)
            words = [a.arg for a in item.args.posonlyargs + item.args.args + item.args.kwonlyargs if a.arg != "self"]
            found[item.name] = None if is_property else words
    return found


def test_stubs_match_the_extension():
    stub = ast.parse((pathlib.Path(heddle.__file__).parent / "_core.pyi").read_text())
    classes = {n.name: stub_of(n) for n in stub.body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")}
    functions = stub_of(stub)
    assert set(classes) | set(functions) | {"__version__"} == public(vars(_core))
    for name, members in classes.items():
        kind = getattr(_core, name)
        if issubclass(kind, Exception):
            continue
        assert set(members) | {"__init__"} == public(vars(kind)) | {"__init__"}, name
        for member, words in members.items():
            if words is None or (name, member) == ("Engine", "attention"):  # takes AttentionConfig's words
                continue
            signature = getattr(kind, member).__doc__.split("->")[0]
            assert re.findall(r"(\w+)(?=:)", signature) == words, f"{name}.{member}: {signature}"


def test_everything_says_what_it_is():
    for name in ("Engine", "Variant", "AttentionConfig", "Attention", "MergeStates", "Workspace", "PlanSummary",
                 "Error"):
        assert getattr(heddle, name).__doc__, name
    for method in (heddle.Attention.plan, heddle.Attention.run, heddle.Attention.append_kv, heddle.Attention.workspace,
                   heddle.MergeStates.run, heddle.Engine.attention, heddle.Engine.merge_states):
        assert len(method.__doc__.splitlines()) > 3
