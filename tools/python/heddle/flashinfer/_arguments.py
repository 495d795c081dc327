"""FlashInfer's arguments as heddle's."""
import torch

from heddle import InputError
from heddle.flashinfer import _refuse


def host(indptr):
    """A list of lengths on the CPU, as int32."""
    return indptr.to("cpu", torch.int32) if isinstance(indptr, torch.Tensor) else torch.tensor(indptr, dtype=torch.int32)


def soft_cap_of(value):
    """FlashInfer: None and 0 (and below) mean no cap."""
    return float(value) if value is not None and value > 0 else None


def split_cache(paged_kv_cache):
    """(k, v), or one tensor [num_pages, 2, ...] of both."""
    if isinstance(paged_kv_cache, torch.Tensor):
        if paged_kv_cache.dim() != 5 or paged_kv_cache.shape[1] != 2:
            raise InputError(f"paged_kv_cache has shape {tuple(paged_kv_cache.shape)}; as one tensor it must be "
                             "[num_pages, 2, page_size, num_kv_heads, head_dim], or HND's like.")
        return paged_kv_cache.unbind(1)
    return tuple(paged_kv_cache)


def config_of(*, num_qo_heads, num_kv_heads, head_dim, page_size, q_data_type, kv_data_type, o_data_type, sm_scale,
              fixed_split_size=None, disable_split_kv=False, max_qo_len=None):
    """AttentionConfig's words. fixed_split_size asks for results that no other request changes, which is
    heddle's batch_invariant; its chunks have a size of their own."""
    _refuse.unless((False,), disable_split_kv=disable_split_kv)
    _refuse.unless((None, q_data_type), o_data_type=o_data_type)
    return {"num_qo_heads": num_qo_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim, "page_size": page_size,
            "q_dtype": q_data_type, "kv_dtype": kv_data_type, "sm_scale": sm_scale, "max_qo_len": max_qo_len,
            "batch_invariant": fixed_split_size is not None}


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
