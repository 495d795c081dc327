"""Merging of attention states (v, s), s the base-2 log of the weights' sum, and attention in levels, whose states
meet so. The merging is in PyTorch, f32 throughout; each level is a launch of its own."""
import torch

from heddle import InputError
from heddle.flashinfer import _refuse
from heddle.flashinfer._arguments import Deprecated
from heddle.flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper
from heddle.flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper
from heddle.flashinfer.single import single_prefill_with_kv_cache


def _weights(s, top):
    # A state without keys has s = -inf and weighs nothing, also where all are so.
    return torch.exp2(s - torch.where(torch.isinf(top), torch.zeros_like(top), top))


def merge_states(v, s):
    """v [rows, num_states, heads, dim], s [rows, num_states, heads] -> v [rows, heads, dim], s [rows, heads]."""
    s = s.float()
    top = s.amax(1, keepdim=True)
    weights = _weights(s, top)
    total = weights.sum(1)
    merged = (weights.unsqueeze(-1) * torch.where(weights.unsqueeze(-1) > 0, v.float(), 0.0)).sum(1)
    merged = merged / total.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(-1)
    return merged.to(v.dtype), torch.log2(total) + torch.where(torch.isinf(top), torch.zeros_like(top), top).squeeze(1)


def merge_state(v_a, s_a, v_b, s_b):
    """v [rows, heads, dim], s [rows, heads] of two states over disjoint keys -> their union's."""
    return merge_states(torch.stack([v_a, v_b], 1), torch.stack([s_a, s_b], 1))


def merge_state_in_place(v, s, v_other, s_other, mask=None):
    """Merges the other state into (v, s); `mask` [rows] bool: only into these rows."""
    merged_v, merged_s = merge_state(v, s, v_other, s_other)
    if mask is not None:
        merged_v = torch.where(mask.bool()[:, None, None], merged_v, v)
        merged_s = torch.where(mask.bool()[:, None], merged_s, s)
    v.copy_(merged_v)
    s.copy_(merged_s)


class MultiLevelCascadeAttentionWrapper(Deprecated):
    """FlashInfer's class of this name, on heddle: level i says for the same query rows which of them share which
    pages, the widest first; causal holds for the last level alone."""

    def __init__(self, num_levels, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False,
                 qo_indptr_buf_arr=None, paged_kv_indptr_buf_arr=None, paged_kv_indices_buf_arr=None,
                 paged_kv_last_page_len_buf_arr=None):
        names = ("qo_indptr_buf", "paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf")
        arrays = (qo_indptr_buf_arr, paged_kv_indptr_buf_arr, paged_kv_indices_buf_arr, paged_kv_last_page_len_buf_arr)
        if any((array is not None) != use_cuda_graph or (array is not None and len(array) != num_levels)
               for array in arrays):
            raise InputError(f"use_cuda_graph is {use_cuda_graph}; {', '.join(f'{n}_arr' for n in names)} belong to "
                             f"it, each with a buffer for each of the {num_levels} levels.")
        buffers = zip(*arrays) if use_cuda_graph else [()] * num_levels
        self.device = float_workspace_buffer.device
        self._use_cuda_graph = use_cuda_graph
        self._levels = [BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout, use_cuda_graph,
                                                            **dict(zip(names, given))) for given in buffers]

    @property
    def is_cuda_graph_enabled(self):
        return self._use_cuda_graph

    def plan(self, qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len, num_qo_heads,
             num_kv_heads, head_dim, page_size, causal=False, pos_encoding_mode="NONE", use_fp16_qk_reduction=False,
             sm_scale=None, window_left=-1, logits_soft_cap=None, rope_scale=None, rope_theta=None,
             q_data_type="float16", kv_data_type=None):
        """Four lists, an entry a level, each as BatchPrefillWithPagedKVCacheWrapper.plan() takes it."""
        lists = qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len
        if any(len(given) != len(self._levels) for given in lists):
            raise InputError(f"plan() has lists of {', '.join(str(len(given)) for given in lists)} levels; this "
                             f"wrapper has {len(self._levels)}.")
        if window_left >= 0 or pos_encoding_mode != "NONE":
            name = f"window_left={window_left}" if window_left >= 0 else f"pos_encoding_mode={pos_encoding_mode!r}"
            _refuse.no_positions(name, "levels: a position would count the keys of one level, not those of the sequence")
        for i, (level, *given) in enumerate(zip(self._levels, *lists)):
            level.plan(*given, num_qo_heads, num_kv_heads, head_dim, page_size,
                       causal=causal and i == len(self._levels) - 1, use_fp16_qk_reduction=use_fp16_qk_reduction,
                       sm_scale=sm_scale, logits_soft_cap=logits_soft_cap, rope_scale=rope_scale,
                       rope_theta=rope_theta, q_data_type=q_data_type, kv_data_type=kv_data_type)

    begin_forward = plan

    def run(self, q, paged_kv_cache):
        """q [rows, num_qo_heads, head_dim] -> like q."""
        states = [level.run(q, paged_kv_cache, return_lse=True) for level in self._levels]
        return _merged(states)

    forward = run


def _merged(states):
    if len(states) == 1:
        return states[0][0]
    return merge_states(torch.stack([v for v, _ in states], 1), torch.stack([s for _, s in states], 1))[0]


class BatchDecodeWithSharedPrefixPagedKVCacheWrapper(Deprecated):
    """FlashInfer's class of this name, on heddle: each request's own pages behind keys that all share."""

    def __init__(self, float_workspace_buffer, kv_layout="NHD"):
        self.device = float_workspace_buffer.device
        self._layout = kv_layout
        self._unique = BatchDecodeWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout)

    def begin_forward(self, unique_kv_indptr, unique_kv_indices, unique_kv_last_page_len, num_qo_heads, num_kv_heads,
                      head_dim, page_size, data_type="float16"):
        self._unique.plan(unique_kv_indptr, unique_kv_indices, unique_kv_last_page_len, num_qo_heads, num_kv_heads,
                          head_dim, page_size, data_type=data_type)

    def forward(self, q, k_shared, v_shared, unique_kv_cache):
        """q [batch, num_qo_heads, head_dim], k_shared and v_shared as of one request -> like q."""
        shared = single_prefill_with_kv_cache(q, k_shared, v_shared, kv_layout=self._layout, return_lse=True)
        return _merged([shared, self._unique.run(q, unique_kv_cache, return_lse=True)])


class BatchPrefillWithSharedPrefixPagedKVCacheWrapper(Deprecated):
    """FlashInfer's class of this name, on heddle. forward() says causal, so the first one after begin_forward()
    plans, and one that says otherwise."""

    def __init__(self, float_workspace_buffer, kv_layout="NHD"):
        self.device = float_workspace_buffer.device
        self._layout = kv_layout
        self._unique = BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout)
        self._given = self._asked = None

    def begin_forward(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
                      num_kv_heads, head_dim, page_size):
        self._given = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
                       num_kv_heads, head_dim, page_size)
        self._asked = None

    def forward(self, q, k_shared, v_shared, unique_kv_cache, causal=False, use_fp16_qk_reduction=False, sm_scale=None,
                rope_scale=None, rope_theta=None):
        """q [qo_indptr[-1], num_qo_heads, head_dim] -> like q; causal among a request's own keys."""
        if self._given is None:
            raise InputError("forward() was called before begin_forward().")
        words = {"use_fp16_qk_reduction": use_fp16_qk_reduction, "sm_scale": sm_scale, "rope_scale": rope_scale,
                 "rope_theta": rope_theta}
        asked = (causal, q.dtype, *words.values())
        if asked != self._asked:
            self._unique.plan(*self._given, causal=causal, q_data_type=q.dtype, **words)
            self._asked = asked
        shared = single_prefill_with_kv_cache(q, k_shared, v_shared, kv_layout=self._layout, return_lse=True, **words)
        return _merged([shared, self._unique.run(q, unique_kv_cache, return_lse=True)])
