"""Where the PyPI packages nvidia-cuda-nvrtc put the library: site-packages/nvidia/*/lib."""
import glob
import importlib.util
import os


def folders():
    """Folders that hold a libnvrtc; that of CUDA 13 (cu13) before that of CUDA 12 (cuda_nvrtc)."""
    # `nvidia` is a namespace package; looking it up imports nothing.
    spec = importlib.util.find_spec("nvidia")
    found = []
    for root in (spec.submodule_search_locations or []) if spec else []:
        found += {os.path.dirname(path) for path in glob.glob(os.path.join(root, "*", "lib", "libnvrtc.so*"))}
    return sorted(found)
