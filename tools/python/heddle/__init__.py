"""heddle: a just-in-time attention engine for LLM serving.

    engine = heddle.Engine()                       # a GPU, or the CPU where there is none
    engine.register_variant("gemma.json")          # or a dict, or JSON text
    attention = engine.attention(variant="gemma", num_qo_heads=32, num_kv_heads=8, head_dim=128)
    workspace = attention.workspace(max_requests=256, max_qo_rows=256, max_kv_tokens=1 << 22)
    for each step:
        attention.plan(workspace, qo_indptr, kv_indptr, last_page_len)
        for each layer:
            attention.run(workspace, q, k, v, o, kv_indices=pages)   # or one CUDA graph of all

Arrays come by DLPack or __cuda_array_interface__, without a copy: NumPy on the CPU device, PyTorch and
others on both. heddle never imports PyTorch itself. `heddle.flashinfer` has FlashInfer's classes on
heddle, `heddle.transformers` an attention for Hugging Face models, `heddle.cache` the compiled kernels.
"""
from heddle import cache
from heddle._core import (
    Attention,
    AttentionConfig,
    CompileError,
    DeviceInfo,
    DriverError,
    Engine,
    Error,
    FileError,
    InputError,
    KernelInfo,
    MergeStates,
    PlanSummary,
    UnsupportedError,
    Variant,
    Workspace,
    __version__,
)

__all__ = [
    "Attention", "AttentionConfig", "CompileError", "DeviceInfo", "DriverError", "Engine", "Error", "FileError",
    "InputError", "KernelInfo", "MergeStates", "PlanSummary", "UnsupportedError", "Variant", "Workspace", "__version__",
    "cache",
]
