"""Batches of requests with one new token each."""
import functools

import torch

from heddle import InputError
from heddle._planned import Planned
from heddle.flashinfer import _refuse
from heddle.flashinfer._arguments import Deprecated, PageIds, config_of, page_lists, parts_of, scale_of, split_cache
from heddle.flashinfer.single import single_decode_with_kv_cache  # noqa: F401 (FlashInfer has it here)


class BatchDecodeWithPagedKVCacheWrapper(Deprecated):
    """FlashInfer's class of this name, on heddle.

    float_workspace_buffer says on which device; heddle keeps a workspace of its own. With use_cuda_graph the
    buffers' lengths are the maxima: any batch within them may be planned, a smaller one too, and
    paged_kv_indices_buffer is what a captured run() reads.
    """

    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, use_tensor_cores=False,
                 paged_kv_indptr_buffer=None, paged_kv_indices_buffer=None, paged_kv_last_page_len_buffer=None,
                 backend="auto", jit_args=None):
        _refuse.unless_none(jit_args=jit_args)
        _refuse.backend(backend)
        buffers = paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer
        if use_cuda_graph != all(b is not None for b in buffers) or (not use_cuda_graph and any(b is not None for b in buffers)):
            raise InputError(f"use_cuda_graph is {use_cuda_graph}; paged_kv_indptr_buffer, paged_kv_indices_buffer and "
                             "paged_kv_last_page_len_buffer belong to it, all three or none.")
        self.device = float_workspace_buffer.device
        self._layout = _refuse.layout(kv_layout)
        self._use_tensor_cores, self._use_cuda_graph = use_tensor_cores, use_cuda_graph
        self._max_requests = len(paged_kv_last_page_len_buffer) if use_cuda_graph else 0
        self._pages = PageIds(paged_kv_indices_buffer)
        self._planned = Planned()

    @property
    def use_tensor_cores(self):
        return self._use_tensor_cores

    @property
    def is_cuda_graph_enabled(self):
        return self._use_cuda_graph

    def plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size,
             pos_encoding_mode="NONE", window_left=-1, logits_soft_cap=None, q_data_type="float16", kv_data_type=None,
             o_data_type=None, data_type=None, sm_scale=None, rope_scale=None, rope_theta=None, non_blocking=True,
             block_tables=None, seq_lens=None, fixed_split_size=None, disable_split_kv=False, q_len_per_req=1):
        """indptr [batch + 1], last_page_len [batch] (best on the CPU); indices [indptr[-1]] page ids.

        q_len_per_req: new tokens of each request; the last sees every key, one before it one less.
        """
        _refuse.unless_none(block_tables=block_tables, seq_lens=seq_lens)
        if q_len_per_req < 1:
            raise InputError(f"q_len_per_req is {q_len_per_req}; it must be at least 1.")
        if data_type is not None:
            q_data_type = kv_data_type = data_type
        config = config_of(num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads, head_dim=head_dim,
                           page_size=page_size, q_data_type=q_data_type, kv_data_type=kv_data_type,
                           o_data_type=o_data_type, sm_scale=sm_scale, fixed_split_size=fixed_split_size,
                           disable_split_kv=disable_split_kv, max_qo_len=q_len_per_req,
                           max_requests=self._max_requests if self._use_cuda_graph else None)
        if self._use_cuda_graph:
            if self._planned.limits and q_len_per_req != self._q_len_per_req:
                raise InputError(f"q_len_per_req is {q_len_per_req}, but this wrapper's graph is frozen at "
                                 f"{self._q_len_per_req}; make another wrapper.")
            self._planned.limits = {"max_requests": self._max_requests,
                                    "max_qo_rows": self._max_requests * q_len_per_req,
                                    "max_kv_tokens": len(self._pages.buffer) * page_size}
        parts, params = parts_of(causal=q_len_per_req > 1, window_left=window_left, logits_soft_cap=logits_soft_cap,
                                 pos_encoding_mode=pos_encoding_mode, rope_scale=rope_scale, rope_theta=rope_theta)
        batch = page_lists(torch.arange(len(last_page_len) + 1) * q_len_per_req, indptr, last_page_len)
        self._window_left, self._q_len_per_req = window_left, q_len_per_req
        self._pages.set(indices[:int(batch["kv_indptr"][-1])], self.device)
        self._planned.plan(self.device, config, parts, batch, params, {})

    begin_forward = plan

    def run(self, q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None, lse=None,
            return_lse=False, enable_pdl=None, window_left=None, sinks=None, q_len_per_req=None,
            skip_softmax_threshold_scale_factor=None, kv_cache_sf=None):
        """q [batch * q_len_per_req, num_qo_heads, head_dim] -> like q; with return_lse also its rows and heads, f32,
        base 2."""
        if args:
            _refuse.unless_none(args=args)
        planned = getattr(self, "_q_len_per_req", 1)
        if q_len_per_req is not None and q_len_per_req != planned:
            raise InputError(f"q_len_per_req is {q_len_per_req}, but plan() was told {planned}.")
        _refuse.unless_none(skip_softmax_threshold_scale_factor=skip_softmax_threshold_scale_factor,
                            kv_cache_sf=kv_cache_sf)
        if window_left is not None:
            _refuse.unless((self._window_left,), window_left=window_left)
        k, v = split_cache(paged_kv_cache)
        return self._planned.run(q, k, v, out=out, lse=lse, return_lse=return_lse, sinks=sinks, v_scale=v_scale,
                                 layout=self._layout, kv_indices=self._pages.ids,
                                 scale=scale_of(q_scale=q_scale, k_scale=k_scale))

    run_return_lse = functools.partialmethod(run, return_lse=True)


class CUDAGraphBatchDecodeWithPagedKVCacheWrapper(BatchDecodeWithPagedKVCacheWrapper):
    """The same with use_cuda_graph and its buffers as plain arguments."""

    def __init__(self, workspace_buffer, indptr_buffer, indices_buffer, last_page_len_buffer, kv_layout="NHD",
                 use_tensor_cores=False):
        super().__init__(workspace_buffer, kv_layout, True, use_tensor_cores, indptr_buffer, indices_buffer,
                         last_page_len_buffer)


def fast_decode_plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size,
                     pos_encoding_mode="NONE", window_left=-1, logits_soft_cap=None, q_data_type=None,
                     kv_data_type=None, data_type=None, sm_scale=None, rope_scale=None, rope_theta=None,
                     non_blocking=True, fixed_split_size=None, disable_split_kv=False, q_len_per_req=1,
                     global_override_indptr_cpu=None):
    """plan() of a decode wrapper, to be bound to it, with the page lists' begins already on the CPU if they are."""
    dtype = data_type if data_type is not None else q_data_type if q_data_type is not None else "float16"
    type(self).plan(  # self.plan may be this function
        self, indptr if global_override_indptr_cpu is None else global_override_indptr_cpu, indices, last_page_len,
        num_qo_heads, num_kv_heads, head_dim, page_size, pos_encoding_mode, window_left, logits_soft_cap, dtype,
        kv_data_type if data_type is None else data_type, None, None, sm_scale, rope_scale, rope_theta, non_blocking,
        fixed_split_size=fixed_split_size, disable_split_kv=disable_split_kv, q_len_per_req=q_len_per_req)
