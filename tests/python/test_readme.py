"""The README's Python runs as it stands."""
import pathlib
import re

import numpy as np
import pytest

README = pathlib.Path(__file__).parents[2] / "README.md"


@pytest.fixture
def blocks(tmp_path, monkeypatch):
    text = README.read_text()
    (tmp_path / "gemma.json").write_text(re.search(r"```json\n(.*?)```", text, re.S).group(1))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(found) == 2
    return found


def test_first_screen(blocks):
    names = {}
    exec(blocks[0], names)
    q, cache, pages = np.ones((2, 32, 128), np.uint16), np.ones((3, 16, 8, 128), np.uint16), np.array([2, 0, 1], np.int32)
    q[:], cache[:] = 0x3F80, 0x4000  # bfloat16: 1 and 2
    o = np.zeros_like(q)
    names["decode"](([0, 1, 2], [0, 2, 3], [5, 7]), q, cache, cache, o, pages)
    assert (o == 0x4000).all()


def test_whole_program(blocks):
    pytest.importorskip("torch")
    names = {}
    exec(blocks[1], names)
    assert (names["o"] == 1).all()
