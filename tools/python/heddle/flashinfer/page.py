"""New keys and values into their pages. In PyTorch; may be captured into a graph."""
import torch

from heddle.flashinfer import _refuse
from heddle.flashinfer._arguments import split_cache


def get_seq_lens(kv_indptr, kv_last_page_len, page_size):
    """Keys of each request: [batch] int32."""
    pages = kv_indptr.diff()
    return torch.where(pages > 0, (pages - 1) * page_size + kv_last_page_len, torch.zeros_like(pages)).int()


def get_batch_indices_positions(append_indptr, seq_lens, nnz, batch_indices=None, positions=None):
    """Of each of `nnz` new rows: its request, and its position in the sequence; both [nnz] int32."""
    rows = torch.arange(nnz, device=append_indptr.device, dtype=append_indptr.dtype)
    request = torch.searchsorted(append_indptr[1:].contiguous(), rows, right=True)
    position = seq_lens[request] - append_indptr[request + 1] + rows
    if batch_indices is not None:
        batch_indices.copy_(request)
    if positions is not None:
        positions.copy_(position)
    return (request.int() if batch_indices is None else batch_indices,
            position.int() if positions is None else positions)


def append_paged_kv_cache(append_key, append_value, batch_indices, positions, paged_kv_cache, kv_indices, kv_indptr,
                          kv_last_page_len, kv_layout="NHD"):
    """Writes append_key and append_value [nnz, num_kv_heads, head_dim] where batch_indices and positions say.

    kv_last_page_len is not needed for that: positions say how far each request goes.
    """
    k, v = split_cache(paged_kv_cache)
    page_size = k.shape[1 if _refuse.layout(kv_layout) == "NHD" else 2]
    request, position = batch_indices.long(), positions.long()
    page = kv_indices[kv_indptr[request].long() + position // page_size].long()
    slot = position % page_size
    for cache, rows in ((k, append_key), (v, append_value)):
        if kv_layout == "NHD":
            cache[page, slot] = rows.to(cache.dtype)
        else:
            cache[page, :, slot] = rows.to(cache.dtype)
