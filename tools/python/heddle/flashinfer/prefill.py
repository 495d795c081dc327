"""Batches of requests with any number of new tokens, over pages or ragged K/V."""
import functools

from heddle.flashinfer import _refuse
from heddle.flashinfer._arguments import PageIds, config_of, host, page_lists, split_cache
from heddle.flashinfer._prefill import Prefill, items_of_plan
from heddle.flashinfer.single import (  # noqa: F401 (FlashInfer has them here)
    single_prefill_with_kv_cache,
    single_prefill_with_kv_cache_return_lse,
)


class BatchPrefillWithPagedKVCacheWrapper(Prefill):
    """FlashInfer's class of this name, on heddle. float_workspace_buffer says on which device; heddle keeps a
    workspace of its own. With use_cuda_graph the buffers' lengths and the first plan's rows are the maxima."""

    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, qo_indptr_buf=None,
                 paged_kv_indptr_buf=None, paged_kv_indices_buf=None, paged_kv_last_page_len_buf=None,
                 custom_mask_buf=None, mask_indptr_buf=None, backend="auto", jit_args=None, jit_kwargs=None):
        buffers = {"qo_indptr_buf": qo_indptr_buf, "paged_kv_indptr_buf": paged_kv_indptr_buf,
                   "paged_kv_indices_buf": paged_kv_indices_buf,
                   "paged_kv_last_page_len_buf": paged_kv_last_page_len_buf}
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, buffers, (custom_mask_buf, mask_indptr_buf),
                         backend, jit_args, jit_kwargs)
        self._pages = PageIds(paged_kv_indices_buf)

    def plan(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
             head_dim_qk, page_size, head_dim_vo=None, custom_mask=None, packed_custom_mask=None, causal=False,
             pos_encoding_mode="NONE", use_fp16_qk_reduction=False, sm_scale=None, window_left=-1,
             logits_soft_cap=None, rope_scale=None, rope_theta=None, q_data_type="float16", kv_data_type=None,
             o_data_type=None, non_blocking=True, fixed_split_size=None, disable_split_kv=False, **more):
        """qo_indptr, paged_kv_indptr [batch + 1], paged_kv_last_page_len [batch] (best on the CPU). `more`: prefix_len_ptr, token_pos_in_items_ptr,
        token_pos_in_items_len and max_item_len_ptr of multi-item scoring."""
        _refuse.unless((False,), use_fp16_qk_reduction=use_fp16_qk_reduction)
        _refuse.unless((None, head_dim_qk), head_dim_vo=head_dim_vo)
        items = items_of_plan(more)
        config = config_of(num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads, head_dim=head_dim_qk,
                           page_size=page_size, q_data_type=q_data_type, kv_data_type=kv_data_type,
                           o_data_type=o_data_type, sm_scale=sm_scale, fixed_split_size=fixed_split_size,
                           disable_split_kv=disable_split_kv)
        batch = page_lists(qo_indptr, paged_kv_indptr, paged_kv_last_page_len)
        kv_len = (batch["kv_indptr"].diff() - 1).clamp(min=0) * page_size + batch["last_page_len"]
        self._pages.set(paged_kv_indices[:int(batch["kv_indptr"][-1])], self.device)
        room = len(self._pages.buffer) * page_size if self._use_cuda_graph else 0
        self._plan(config, batch, kv_len, room, causal=causal, window_left=window_left,
                   logits_soft_cap=logits_soft_cap, custom_mask=custom_mask, packed_custom_mask=packed_custom_mask,
                   pos_encoding_mode=pos_encoding_mode, rope_scale=rope_scale, rope_theta=rope_theta, items=items)

    begin_forward = plan

    def run(self, q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None, lse=None,
            return_lse=False, enable_pdl=None, window_left=None, sinks=None, kv_cache_sf=None,
            skip_softmax_threshold_scale_factor=None, use_fp16_softmax=None, uses_spcompress=None):
        """q [qo_indptr[-1], num_qo_heads, head_dim] -> like q; with return_lse also [rows, num_qo_heads], base 2."""
        _refuse.unless_none(kv_cache_sf=kv_cache_sf, use_fp16_softmax=use_fp16_softmax, uses_spcompress=uses_spcompress,
                            skip_softmax_threshold_scale_factor=skip_softmax_threshold_scale_factor)
        if window_left is not None:
            _refuse.unless((self._window_left,), window_left=window_left)
        k, v = split_cache(paged_kv_cache)
        return self._run(q, k, v, args, q_scale=q_scale, k_scale=k_scale, out=out, lse=lse, return_lse=return_lse,
                         sinks=sinks, v_scale=v_scale, layout=self._layout, kv_indices=self._pages.ids)

    run_return_lse = functools.partialmethod(run, return_lse=True)


class BatchPrefillWithRaggedKVCacheWrapper(Prefill):
    """FlashInfer's class of this name, on heddle: k and v are [kv_indptr[-1], num_kv_heads, head_dim]."""

    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, qo_indptr_buf=None,
                 kv_indptr_buf=None, custom_mask_buf=None, mask_indptr_buf=None, backend="auto", jit_args=None,
                 jit_kwargs=None):
        _refuse.unless_none(custom_mask_buf=custom_mask_buf, mask_indptr_buf=mask_indptr_buf)
        # FlashInfer documents no other shape for ragged K/V, and has none under graphs whose keys vary.
        _refuse.unless(("NHD",), kv_layout=kv_layout)
        _refuse.unless((False,), use_cuda_graph=use_cuda_graph)
        buffers = {"qo_indptr_buf": qo_indptr_buf, "kv_indptr_buf": kv_indptr_buf}
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, buffers, (None, None), backend, jit_args,
                         jit_kwargs)

    def plan(self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo=None, custom_mask=None,
             packed_custom_mask=None, causal=False, pos_encoding_mode="NONE", use_fp16_qk_reduction=False,
             window_left=-1, logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None,
             q_data_type="float16", kv_data_type=None, o_data_type=None, non_blocking=True, fixed_split_size=None,
             disable_split_kv=False, **more):
        """qo_indptr, kv_indptr [batch + 1] (best on the CPU). `more`: prefix_len_ptr, token_pos_in_items_ptr,
        token_pos_in_items_len and max_item_len_ptr of multi-item scoring."""
        _refuse.unless((False,), use_fp16_qk_reduction=use_fp16_qk_reduction)
        _refuse.unless((None, head_dim_qk), head_dim_vo=head_dim_vo)
        items = items_of_plan(more)
        config = config_of(num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads, head_dim=head_dim_qk, page_size=0,
                           q_data_type=q_data_type, kv_data_type=kv_data_type, o_data_type=o_data_type,
                           sm_scale=sm_scale, fixed_split_size=fixed_split_size, disable_split_kv=disable_split_kv)
        batch = {"qo_indptr": host(qo_indptr), "kv_indptr": host(kv_indptr)}
        self._plan(config, batch, batch["kv_indptr"].diff(), 0, causal=causal, window_left=window_left,
                   logits_soft_cap=logits_soft_cap, custom_mask=custom_mask, packed_custom_mask=packed_custom_mask,
                   pos_encoding_mode=pos_encoding_mode, rope_scale=rope_scale, rope_theta=rope_theta, items=items)

    begin_forward = plan

    def run(self, q, k, v, *args, q_scale=None, k_scale=None, v_scale=None, o_scale=None, out=None, lse=None,
            return_lse=False, enable_pdl=None, kv_cache_sf=None, sinks=None):
        """q [qo_indptr[-1], num_qo_heads, head_dim] -> like q; with return_lse also [rows, num_qo_heads], base 2."""
        _refuse.unless((None, 1.0), o_scale=o_scale)
        _refuse.unless_none(kv_cache_sf=kv_cache_sf)
        return self._run(q, k, v, args, q_scale=q_scale, k_scale=k_scale, out=out, lse=lse, return_lse=return_lse,
                         sinks=sinks, v_scale=v_scale, layout="NHD")

    run_return_lse = functools.partialmethod(run, return_lse=True)
