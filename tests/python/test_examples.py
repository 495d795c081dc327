"""Every script of tools/python/examples runs on the CPU device and finds its own results right."""
import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "tools" / "python" / "examples"
NEED_TORCH = {"decode_loop", "shared_prefix"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example(path):
    if path.stem in NEED_TORCH:
        pytest.importorskip("torch")
    run = subprocess.run([sys.executable, path], capture_output=True, text=True,
                         env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"})
    assert run.returncode == 0, run.stderr
    assert "CPU" in run.stdout or "cpu" in run.stdout
