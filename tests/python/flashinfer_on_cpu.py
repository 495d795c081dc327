"""Lets tests written for "cuda" run on PyTorch's CPU tensors: their device arguments are replaced, and what they ask of
torch.cuda is answered as an idle device of compute capability 9.0 would, except CUDA graphs, which skip the test."""
import contextlib
import types

import pytest
import torch
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")
_DEVICE_FIRST = {"to", "cuda", "new_tensor"}  # where a plain number is a device, not a size


def _is_cuda(value):
    return (isinstance(value, torch.device) and value.type == "cuda") or (
        isinstance(value, str) and value.split(":")[0] == "cuda")


class _OnCpu(TorchFunctionMode):
    """Of every torch function: cuda, as an argument, is cpu."""

    def __torch_function__(self, function, types_, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if name == "cuda":
            return args[0]
        args = [_CPU if _is_cuda(a) else a for a in args]
        if name in _DEVICE_FIRST and len(args) > 1 and type(args[1]) is int:
            args[1] = _CPU
        device = kwargs.get("device")
        if _is_cuda(device) or type(device) is int:
            kwargs["device"] = _CPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if name == "pin_memory":
            return args[0]
        return function(*args, **kwargs)


def _no_graph(*_, **__):
    pytest.skip("captures a CUDA graph, which the CPU device does not have")


def install():
    """For the rest of the process."""
    _OnCpu().__enter__()
    generator = torch.Generator

    class OnCpu(generator):  # a class, since annotations join it with others by |
        def __new__(cls, device="cpu"):
            return generator(_CPU if _is_cuda(device) else device)
    torch.Generator = OnCpu
    idle = contextlib.nullcontext
    stream = types.SimpleNamespace(synchronize=lambda: None, wait_stream=lambda _: None, cuda_stream=0)
    memory = types.SimpleNamespace(total_memory=1 << 34, multi_processor_count=132, name="CPU", major=9, minor=0)
    for name, answer in {
            "synchronize": lambda *_: None, "is_available": lambda: True, "manual_seed": lambda _: None,
            "manual_seed_all": lambda _: None, "empty_cache": lambda: None, "current_device": lambda: 0,
            "device_count": lambda: 1, "get_device_capability": lambda *_: (9, 0), "memory_reserved": lambda *_: 0,
            "memory_allocated": lambda *_: 0, "mem_get_info": lambda *_: (1 << 34, 1 << 34),
            "get_device_properties": lambda *_: memory, "get_device_name": lambda *_: "CPU",
            "device": lambda *_: idle(), "Stream": lambda *_, **__: stream, "stream": lambda *_: idle(),
            "current_stream": lambda *_: stream, "default_stream": lambda *_: stream,
            "CUDAGraph": _no_graph, "graph": _no_graph}.items():
        setattr(torch.cuda, name, answer)
