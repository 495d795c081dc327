"""BatchAttention, and the paged prefill with a sink given behind the keys and values."""
import torch

from heddle._planned import Planned
from heddle.flashinfer import _refuse
from heddle.flashinfer._arguments import PageIds, config_of, host, page_lists, parts_of, scale_of, split_cache
from heddle.flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper


class BatchAttention:
    """FlashInfer's class of this name, on heddle: a batch of decodes and prefills. run() always returns the lse too."""

    def __init__(self, kv_layout="NHD", device="cuda"):
        self._layout = _refuse.layout(kv_layout)
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self._pages = PageIds()
        self._planned = Planned()

    def plan(self, qo_indptr, kv_indptr, kv_indices, kv_len_arr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo,
             page_size, causal=False, sm_scale=None, logits_soft_cap=None, q_data_type=torch.bfloat16,
             kv_data_type=torch.bfloat16, use_profiler=False):
        """qo_indptr, kv_indptr [batch + 1], kv_len_arr [batch] keys (best on the CPU)."""
        _refuse.unless((head_dim_qk,), head_dim_vo=head_dim_vo)
        _refuse.unless((False,), use_profiler=use_profiler)
        config = config_of(num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads, head_dim=head_dim_qk,
                           page_size=page_size, q_data_type=q_data_type, kv_data_type=kv_data_type, o_data_type=None,
                           sm_scale=sm_scale)
        parts, params = parts_of(causal=causal, logits_soft_cap=logits_soft_cap)
        last = host(kv_len_arr) - (host(kv_indptr).diff() - 1) * page_size
        batch = page_lists(qo_indptr, kv_indptr, last)
        self._soft_cap = params.get("cap", 0.0)
        self._pages.set(kv_indices[:int(batch["kv_indptr"][-1])], self.device)
        self._planned.plan(self.device, config, parts, batch, params, {})

    def run(self, q, kv_cache, out=None, lse=None, k_scale=None, v_scale=None, logits_soft_cap=0.0,
            profiler_buffer=None, kv_cache_sf=None):
        """q [qo_indptr[-1], num_qo_heads, head_dim] -> (like q, [rows, num_qo_heads] f32 base 2)."""
        _refuse.unless_none(profiler_buffer=profiler_buffer, kv_cache_sf=kv_cache_sf)
        if logits_soft_cap:  # 0, the default, stands for plan()'s
            _refuse.unless((getattr(self, "_soft_cap", 0.0),), logits_soft_cap=logits_soft_cap)
        k, v = split_cache(kv_cache)
        return self._planned.run(q, k, v, out=out, lse=lse, return_lse=True, sinks=None, v_scale=v_scale,
                                 layout=self._layout, kv_indices=self._pages.ids, scale=scale_of(k_scale=k_scale))


class BatchAttentionWithAttentionSinkWrapper(BatchPrefillWithPagedKVCacheWrapper):
    """FlashInfer's class of this name, on heddle: run(q, paged_kv_cache, sink, sm_scale), sink [num_qo_heads] f32.
    plan() says the shapes, the data types and the window."""

    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, qo_indptr_buf=None,
                 paged_kv_indptr_buf=None, paged_kv_indices_buf=None, paged_kv_last_page_len_buf=None,
                 custom_mask_buf=None, mask_indptr_buf=None, backend="auto", pos_encoding_mode="NONE",
                 use_fp16_qk_reduction=False, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16, head_dim_qk=128,
                 head_dim_vo=128, window_left=-1):
        _refuse.unless(("NONE",), pos_encoding_mode=pos_encoding_mode)
        _refuse.unless((False,), use_fp16_qk_reduction=use_fp16_qk_reduction)
        _refuse.unless((head_dim_qk,), head_dim_vo=head_dim_vo)
        _refuse.unless((q_data_type,), kv_data_type=kv_data_type)
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, qo_indptr_buf, paged_kv_indptr_buf,
                         paged_kv_indices_buf, paged_kv_last_page_len_buf, custom_mask_buf, mask_indptr_buf, backend)
        self._takes_sink = True
