"""FlashInfer's arguments as heddle's."""
import torch

from heddle import InputError
from heddle.flashinfer import _refuse


def host(indptr):
    """A list of lengths on the CPU, as int32."""
    return indptr.to("cpu", torch.int32) if isinstance(indptr, torch.Tensor) else torch.tensor(indptr, dtype=torch.int32)


def parts_of(*, causal=False, window_left=-1, logits_soft_cap=None, mask=None, pos_encoding_mode="NONE",
             rope_scale=None, rope_theta=None):
    """(parts of the variant, its params). A custom mask stands in for causal, as in FlashInfer."""
    _refuse.unless(("NONE", "ROPE_LLAMA", "ALIBI"), pos_encoding_mode=pos_encoding_mode)
    if pos_encoding_mode != "ROPE_LLAMA":  # else they would be given for nothing
        _refuse.unless_none(rope_scale=rope_scale, rope_theta=rope_theta)
    cap = float(logits_soft_cap) if logits_soft_cap is not None and logits_soft_cap > 0 else None
    parts = {"causal": causal and mask in (None, "items"), "window": window_left >= 0, "soft_cap": cap is not None, "mask": mask,
             "positions": {"NONE": None, "ROPE_LLAMA": "rope", "ALIBI": "alibi"}[pos_encoding_mode]}
    params = {**({"window_left": window_left} if window_left >= 0 else {}), **({"cap": cap} if cap else {})}
    if pos_encoding_mode == "ROPE_LLAMA":
        params["rope_theta"] = 1e4 if rope_theta is None else float(rope_theta)
        params["rope_factor"] = 1.0 if rope_scale is None else 1.0 / float(rope_scale)
    return parts, params


def scale_of(**scales):
    """The factor of the logits that scales of q and k make: numbers, or tensors of one element."""
    factor = 1.0
    for name, scale in scales.items():
        if isinstance(scale, torch.Tensor) and scale.numel() != 1:
            raise InputError(f"{name} has shape {tuple(scale.shape)}; it must be a number or a tensor of one element.")
        factor *= 1.0 if scale is None else float(scale)
    return factor


def split_cache(paged_kv_cache):
    """(k, v), or one tensor [num_pages, 2, ...] of both."""
    if isinstance(paged_kv_cache, torch.Tensor):
        if paged_kv_cache.dim() != 5 or paged_kv_cache.shape[1] != 2:
            raise InputError(f"paged_kv_cache has shape {tuple(paged_kv_cache.shape)}; as one tensor it must be "
                             "[num_pages, 2, page_size, num_kv_heads, head_dim], or HND's like.")
        return paged_kv_cache.unbind(1)
    k, v = paged_kv_cache
    if k.dim() == 3 and v.dim() == 3:  # pages of one key
        k, v = k.unsqueeze(1), v.unsqueeze(1)
    return k, v


def config_of(*, num_qo_heads, num_kv_heads, head_dim, page_size, q_data_type, kv_data_type, o_data_type, sm_scale,
              fixed_split_size=None, disable_split_kv=False, max_qo_len=None, max_requests=None):
    """AttentionConfig's words. fixed_split_size and disable_split_kv ask for results that no other request changes,
    which is heddle's batch_invariant; its chunks have a size of their own."""
    word = lambda dtype: str(dtype).removeprefix("torch.")  # noqa: E731
    if word(o_data_type) != word(q_data_type):
        _refuse.unless((None, q_data_type), o_data_type=o_data_type)
    return {"num_qo_heads": num_qo_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim, "page_size": page_size,
            "q_dtype": q_data_type, "kv_dtype": kv_data_type, "sm_scale": sm_scale, "max_qo_len": max_qo_len,
            "max_requests": max_requests,
            "batch_invariant": fixed_split_size is not None or bool(disable_split_kv)}


def page_lists(qo_indptr, indptr, last_page_len):
    """FlashInfer allows any last_page_len beside an empty page list; heddle wants 0 there."""
    qo_indptr, indptr, last = host(qo_indptr), host(indptr), host(last_page_len)
    empty = indptr[1:] == indptr[:-1]
    if bool(empty.any()):
        last = last.masked_fill(empty, 0)
    return {"qo_indptr": qo_indptr, "kv_indptr": indptr, "last_page_len": last}


class PageIds:
    """The page ids of a wrapper: the caller's tensor, or a graph's buffer into which each plan copies."""

    def __init__(self, buffer=None):
        self.buffer = buffer
        self.ids = buffer

    def set(self, indices, device):
        if self.buffer is None:
            self.ids = indices.to(device, torch.int32, non_blocking=True)
            return
        if len(indices) > len(self.buffer):
            raise InputError(f"The batch has {len(indices)} page ids; the graph's buffer holds {len(self.buffer)}.")
        self.buffer[:len(indices)].copy_(indices, non_blocking=True)


class Deprecated:
    """Methods that FlashInfer still has for older programs."""

    def end_forward(self):
        """Has no effect, as in FlashInfer."""

    def reset_workspace_buffer(self, float_workspace_buffer, int_workspace_buffer):
        """heddle keeps a workspace of its own, so only the device counts."""
        for buffer in (float_workspace_buffer, int_workspace_buffer):
            if buffer is not None and buffer.device != self.device:
                raise InputError(f"The workspace buffer is on {buffer.device}; this wrapper was made for {self.device}.")
