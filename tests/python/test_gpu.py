"""gpu_check.py under pytest: skipped where there is no GPU."""
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_gpu_check():
    subprocess.run([sys.executable, pathlib.Path(__file__).with_name("gpu_check.py")], check=True)
