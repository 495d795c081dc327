"""FlashInfer's classes and functions that serving code calls, on heddle: `import heddle.flashinfer as flashinfer`.

Signatures and results are FlashInfer's, lse in base 2 included. What heddle does not support is refused with the
argument's name and value (heddle.UnsupportedError, a NotImplementedError): FP8 and FP4 caches, other output types,
head_dim_vo, jit_args of CUDA source, cuDNN's and TensorRT-LLM's arguments. use_tensor_cores, non_blocking and
enable_pdl choose among FlashInfer's own kernels and launches and change no result: any value will do. Page lists are
best on the CPU; on the GPU, plan() waits for them, as FlashInfer's does.

Unlike FlashInfer's, run() of the decode and prefill wrappers takes `sinks`, and scales of q and k with any cache: the
first run() with them plans once more. merge_state(s), packbits and append_paged_kv_cache are in PyTorch.
"""
from heddle.flashinfer._refuse import attention_sink_decl
from heddle.flashinfer.attention import BatchAttention, BatchAttentionWithAttentionSinkWrapper
from heddle.flashinfer.cascade import (
    BatchDecodeWithSharedPrefixPagedKVCacheWrapper,
    BatchPrefillWithSharedPrefixPagedKVCacheWrapper,
    MultiLevelCascadeAttentionWrapper,
    merge_state,
    merge_state_in_place,
    merge_states,
)
from heddle.flashinfer.decode import (
    BatchDecodeWithPagedKVCacheWrapper,
    CUDAGraphBatchDecodeWithPagedKVCacheWrapper,
    fast_decode_plan,
)
from heddle.flashinfer.page import append_paged_kv_cache, get_batch_indices_positions, get_seq_lens
from heddle.flashinfer.pod import BatchPODWithPagedKVCacheWrapper, PODWithPagedKVCacheWrapper
from heddle.flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper, BatchPrefillWithRaggedKVCacheWrapper
from heddle.flashinfer.quantization import packbits, segment_packbits
from heddle.flashinfer.single import (
    single_decode_with_kv_cache,
    single_prefill_with_kv_cache,
    single_prefill_with_kv_cache_return_lse,
)
from heddle.flashinfer.sparse import BlockSparseAttentionWrapper, VariableBlockSparseAttentionWrapper

__all__ = [
    "BatchAttention", "BatchAttentionWithAttentionSinkWrapper", "BatchDecodeWithPagedKVCacheWrapper",
    "BatchDecodeWithSharedPrefixPagedKVCacheWrapper", "BatchPODWithPagedKVCacheWrapper",
    "BatchPrefillWithPagedKVCacheWrapper", "BatchPrefillWithRaggedKVCacheWrapper",
    "BatchPrefillWithSharedPrefixPagedKVCacheWrapper", "BlockSparseAttentionWrapper",
    "CUDAGraphBatchDecodeWithPagedKVCacheWrapper", "MultiLevelCascadeAttentionWrapper", "PODWithPagedKVCacheWrapper",
    "VariableBlockSparseAttentionWrapper", "append_paged_kv_cache", "attention_sink_decl", "fast_decode_plan",
    "get_batch_indices_positions", "get_seq_lens", "merge_state", "merge_state_in_place", "merge_states", "packbits",
    "segment_packbits", "single_decode_with_kv_cache", "single_prefill_with_kv_cache",
    "single_prefill_with_kv_cache_return_lse",
]


def __getattr__(name):
    raise AttributeError(f"heddle.flashinfer has no {name!r}: of FlashInfer it has attention of single requests, of "
                         "batches over pages and ragged rows, in blocks, in levels and of POD, merging of states and "
                         "appending to pages; not MLA, FP8 or FP4, cuDNN or TensorRT-LLM, and nothing beside attention.")
