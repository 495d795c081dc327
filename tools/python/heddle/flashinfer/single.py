"""One request, without a wrapper: every call plans and runs."""
import functools

import torch

from heddle import InputError
from heddle.flashinfer import _refuse
from heddle._planned import planned_of_thread
from heddle.flashinfer._arguments import config_of, parts_of, scale_of
from heddle.flashinfer._prefill import mask_tensors


def _run(q, k, v, *, kv_layout, sm_scale, window_left, logits_soft_cap, causal, custom_mask, packed_custom_mask,
         positions, scale, v_scale, return_lse, max_qo_len):
    if q.requires_grad or k.requires_grad or v.requires_grad:
        raise InputError("A tensor requires a gradient; heddle has no backward pass. Call detach() or torch.no_grad().")
    if _refuse.layout(kv_layout) == "HND":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    config = config_of(num_qo_heads=q.shape[1], num_kv_heads=k.shape[1], head_dim=q.shape[2], page_size=0,
                       q_data_type=q.dtype, kv_data_type=k.dtype, o_data_type=None, sm_scale=sm_scale,
                       max_qo_len=max_qo_len, max_requests=1)
    lengths = torch.tensor([q.shape[0]]), torch.tensor([k.shape[0]])
    mask, tensors = mask_tensors(custom_mask, packed_custom_mask, *lengths, q.device)
    parts, params = parts_of(causal=causal, window_left=window_left, logits_soft_cap=logits_soft_cap, mask=mask,
                             **positions)
    planned = planned_of_thread((q.device, tuple(config.items()), tuple(parts.items())))
    planned.plan(q.device, config, parts, {"qo_indptr": [0, q.shape[0]], "kv_indptr": [0, k.shape[0]]}, params, tensors)
    return planned.run(q, k, v, out=None, lse=None, return_lse=return_lse, sinks=None, v_scale=v_scale, layout="NHD",
                       scale=scale)


def single_decode_with_kv_cache(q, k, v, kv_layout="NHD", pos_encoding_mode="NONE", use_tensor_cores=False,
                                q_scale=None, k_scale=None, v_scale=None, window_left=-1, logits_soft_cap=None,
                                sm_scale=None, rope_scale=None, rope_theta=None, return_lse=False):
    """q [num_qo_heads, head_dim], k and v [kv_len, num_kv_heads, head_dim] -> like q, and [num_qo_heads] base 2."""
    positions = {"pos_encoding_mode": pos_encoding_mode, "rope_scale": rope_scale, "rope_theta": rope_theta}
    result = _run(q.unsqueeze(0), k, v, kv_layout=kv_layout, sm_scale=sm_scale, window_left=window_left,
                  logits_soft_cap=logits_soft_cap, causal=False, custom_mask=None, packed_custom_mask=None,
                  positions=positions, scale=scale_of(q_scale=q_scale, k_scale=k_scale), v_scale=v_scale,
                  return_lse=return_lse, max_qo_len=1)
    return (result[0][0], result[1][0]) if return_lse else result[0]


def single_prefill_with_kv_cache(q, k, v, scale_q=None, scale_k=None, scale_v=None, o_dtype=None, custom_mask=None,
                                 packed_custom_mask=None, causal=False, kv_layout="NHD", pos_encoding_mode="NONE",
                                 use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, logits_soft_cap=None,
                                 rope_scale=None, rope_theta=None, backend="auto", return_lse=False, kv_cache_sf=None,
                                 k_scale=None, v_scale=None):
    """q [qo_len, num_qo_heads, head_dim], k and v [kv_len, num_kv_heads, head_dim] -> like q, and [qo_len,
    num_qo_heads] base 2. custom_mask: bool [qo_len, kv_len]; packed_custom_mask: its bits."""
    positions = {"pos_encoding_mode": pos_encoding_mode, "rope_scale": rope_scale, "rope_theta": rope_theta}
    _refuse.backend(backend)
    _refuse.unless((False,), use_fp16_qk_reduction=use_fp16_qk_reduction)
    _refuse.unless_none(kv_cache_sf=kv_cache_sf)
    if v_scale is not None and scale_v is not None:
        raise InputError("v_scale and scale_v are both given, two names of one scale; give one.")
    _refuse.unless((None, q.dtype), o_dtype=o_dtype)
    return _run(q, k, v, kv_layout=kv_layout, sm_scale=sm_scale, window_left=window_left,
                logits_soft_cap=logits_soft_cap, causal=causal, custom_mask=custom_mask,
                packed_custom_mask=packed_custom_mask, positions=positions,
                scale=scale_of(scale_q=scale_q, scale_k=scale_k, k_scale=k_scale),
                v_scale=scale_v if v_scale is None else v_scale, return_lse=return_lse, max_qo_len=None)


single_prefill_with_kv_cache_return_lse = functools.partial(single_prefill_with_kv_cache, return_lse=True)
