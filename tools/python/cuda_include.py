#!/usr/bin/env python3
"""Prints the folders above the CUDA headers that PyPI packages brought, as a CMake list.

pip installs a wheel's build requirements where this interpreter finds them: nvidia/cu13/include, or for
CUDA 12 nvidia/cuda_nvrtc/include and nvidia/cuda_runtime/include.
"""
import glob
import importlib.util
import os

spec = importlib.util.find_spec("nvidia")
roots = list(spec.submodule_search_locations or []) if spec else []
print(";".join(sorted({os.path.dirname(os.path.dirname(header)) for root in roots
                       for header in glob.glob(os.path.join(root, "*", "include", "nvrtc.h"))})))
