"""A prefill and a batch of decodes from one call (POD-Attention, arXiv:2410.18038).

The two run one after the other: heddle's work list puts prefill and decode into one launch where both are requests of
one paged batch, which is what BatchAttention plans.
"""
from heddle import InputError
from heddle.flashinfer import _refuse
from heddle.flashinfer._arguments import Deprecated
from heddle.flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper
from heddle.flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper
from heddle.flashinfer.single import single_prefill_with_kv_cache


class PODWithPagedKVCacheWrapper(Deprecated):
    """FlashInfer's class of this name, on heddle. plan() is of the decodes."""

    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, paged_kv_indptr_buffer=None,
                 paged_kv_indices_buffer=None, paged_kv_last_page_len_buffer=None, jit_args=None):
        # The prefill of a call is planned in run(), which a captured graph does not repeat.
        _refuse.unless((False,), use_cuda_graph=use_cuda_graph)
        _refuse.unless_none(paged_kv_indptr_buffer=paged_kv_indptr_buffer, jit_args=jit_args,
                            paged_kv_indices_buffer=paged_kv_indices_buffer,
                            paged_kv_last_page_len_buffer=paged_kv_last_page_len_buffer)
        self.device = float_workspace_buffer.device
        self._layout, self._window_left, self._given = kv_layout, -1, None
        self._decode = BatchDecodeWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout)

    is_cuda_graph_enabled = False

    def plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size,
             pos_encoding_mode="NONE", window_left=-1, q_data_type="float16", kv_data_type=None, data_type=None,
             sm_scale=None, rope_scale=None, rope_theta=None, non_blocking=True):
        self._given = {"pos_encoding_mode": pos_encoding_mode, "rope_scale": rope_scale, "rope_theta": rope_theta,
                       "sm_scale": sm_scale}
        self._window_left = window_left
        self._decode.plan(indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size,
                          window_left=window_left, q_data_type=q_data_type, kv_data_type=kv_data_type,
                          data_type=data_type, **self._given)

    begin_forward = plan

    def run(self, q_p, k_p, v_p, q_d, paged_kv_cache_d, custom_mask_p=None, packed_custom_mask_p=None, causal_p=False,
            kv_layout_p="NHD", pos_encoding_mode_p="NONE", sm_scale_p=None, window_left_p=-1, rope_scale_p=None,
            rope_theta_p=None, return_lse_p=False, custom_mask_d=None, packed_custom_mask_d=None, causal_d=False,
            kv_layout_d="NHD", pos_encoding_mode_d="NONE", sm_scale_d=None, window_left_d=-1, rope_scale_d=None,
            rope_theta_d=None, q_scale=None, k_scale=None, v_scale=None, return_lse_d=False,
            use_fp16_qk_reduction=False, enable_pdl=None, *args):
        """q_p, k_p, v_p as of single_prefill_with_kv_cache, q_d and its cache as planned -> (o of the prefill, o of
        the decodes), each with its lse where return_lse_p or return_lse_d asks for it."""
        if self._given is None:
            raise InputError("run() was called before plan().")
        _refuse.unless_none(custom_mask_d=custom_mask_d, packed_custom_mask_d=packed_custom_mask_d, args=args or None)
        _refuse.unless((False,), use_fp16_qk_reduction=use_fp16_qk_reduction, causal_d=causal_d)
        # plan() has said these of the decodes; run() may repeat them.
        _refuse.unless((self._layout, "NHD"), kv_layout_d=kv_layout_d)
        _refuse.unless((self._window_left, -1), window_left_d=window_left_d)
        _refuse.unless((self._given["pos_encoding_mode"], "NONE"), pos_encoding_mode_d=pos_encoding_mode_d)
        for name, value in (("sm_scale", sm_scale_d), ("rope_scale", rope_scale_d), ("rope_theta", rope_theta_d)):
            _refuse.unless((self._given[name], None), **{f"{name}_d": value})
        prefill = single_prefill_with_kv_cache(
            q_p, k_p, v_p, custom_mask=custom_mask_p, packed_custom_mask=packed_custom_mask_p, causal=causal_p,
            kv_layout=kv_layout_p, pos_encoding_mode=pos_encoding_mode_p, sm_scale=sm_scale_p,
            window_left=window_left_p, rope_scale=rope_scale_p, rope_theta=rope_theta_p, return_lse=return_lse_p)
        decode = self._decode.run(q_d, paged_kv_cache_d, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale,
                                  return_lse=return_lse_d)
        return prefill, decode


class BatchPODWithPagedKVCacheWrapper(Deprecated):
    """FlashInfer's class of this name, on heddle: both batches over pages."""

    def __init__(self, float_workspace_buffer, kv_layout="NHD"):
        self.device = float_workspace_buffer.device
        self._lists_p = None
        self._prefill = BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout)
        self._decode = BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout)

    is_cuda_graph_enabled = False

    def plan(self, qo_indptr_p, kv_indptr_p, kv_indices_p, last_page_len_p, qo_indptr_d, kv_indptr_d, kv_indices_d,
             last_page_len_d, num_qo_heads, num_kv_heads, head_dim, page_size, pos_encoding_mode="NONE", window_left=-1,
             q_data_type="float16", kv_data_type=None, data_type=None, sm_scale=None, rope_scale=None, rope_theta=None,
             non_blocking=True):
        dtypes = (q_data_type, kv_data_type) if data_type is None else (data_type, data_type)
        self._shape = (num_qo_heads, num_kv_heads, head_dim, page_size)
        self._words = {"pos_encoding_mode": pos_encoding_mode, "window_left": window_left, "sm_scale": sm_scale,
                       "rope_scale": rope_scale, "rope_theta": rope_theta, "q_data_type": dtypes[0],
                       "kv_data_type": dtypes[1]}
        self._lists_p = (qo_indptr_p, kv_indptr_p, kv_indices_p, last_page_len_p)
        self._planned_p = None  # run() says the mask of the prefill
        self._decode.plan(qo_indptr_d, kv_indptr_d, kv_indices_d, last_page_len_d, *self._shape, **self._words)

    begin_forward = plan

    def run(self, q_p, paged_kv_cache_p, q_d, paged_kv_cache_d, custom_mask_p=None, packed_custom_mask_p=None,
            causal_p=False, q_scale=None, k_scale=None, v_scale=None, return_lse=False, use_fp16_qk_reduction=False,
            enable_pdl=None):
        """-> (o of the prefills, o of the decodes); with return_lse ((o, o), (lse, lse)), base 2."""
        if self._lists_p is None:
            raise InputError("run() was called before plan().")
        _refuse.unless((False,), use_fp16_qk_reduction=use_fp16_qk_reduction)
        if self._planned_p != causal_p or custom_mask_p is not None or packed_custom_mask_p is not None:
            self._prefill.plan(*self._lists_p, *self._shape, causal=causal_p, custom_mask=custom_mask_p,
                               packed_custom_mask=packed_custom_mask_p, **self._words)
            self._planned_p = causal_p if custom_mask_p is None and packed_custom_mask_p is None else None
        words = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale, "return_lse": return_lse}
        prefill = self._prefill.run(q_p, paged_kv_cache_p, **words)
        decode = self._decode.run(q_d, paged_kv_cache_d, **words)
        return tuple(zip(prefill, decode)) if return_lse else (prefill, decode)
