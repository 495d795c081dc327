"""Block-sparse attention: a row of blocks is a request, a block of keys a page, so the mask is the page list.

K and V are read in place, as pages of a strided view. Nothing here knows a key's position in the sequence.
"""
import functools
import math

import torch

from heddle import InputError
from heddle._planned import Planned
from heddle.flashinfer import _refuse
from heddle.flashinfer._arguments import Deprecated, config_of, host, parts_of, scale_of
from heddle.flashinfer._prefill import mask_tensors


def _indptr(counts):
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)


def _flat_mask(mask, indptr, rows):
    """[num_blocks, R, C] of the BSR -> [sum(rows * kv_len)], each request's rows one behind the other."""
    num_blocks, _, width = mask.shape
    blocks = indptr.diff().long()
    request = torch.repeat_interleave(torch.arange(len(blocks)), blocks)
    begin = torch.nn.functional.pad((rows.long() * blocks * width).cumsum(0), (1, 0))[request]
    row_width = (blocks * width)[request]
    within = (torch.arange(num_blocks) - indptr[:-1].long()[request]) * width
    at = (begin + within)[:, None, None] + (torch.arange(mask.shape[1])[:, None] * row_width[:, None, None]
                                            + torch.arange(width))
    there = (torch.arange(mask.shape[1]) < rows[request][:, None])[:, :, None].expand_as(at)
    flat = torch.empty(int(there.sum()), dtype=torch.bool, device=mask.device)
    flat[at[there].to(mask.device)] = mask[there.to(mask.device)] != 0
    return flat


class BlockSparseAttentionWrapper(Deprecated):
    """FlashInfer's class of this name, on heddle: a mask of blocks R x C in SciPy's BSR form, for all heads."""

    def __init__(self, float_workspace_buffer, backend="auto"):
        _refuse.backend(backend)
        self.device = float_workspace_buffer.device
        self._planned = Planned()

    def plan(self, indptr, indices, M, N, R, C, num_qo_heads, num_kv_heads, head_dim, mask=None, packed_mask=None,
             causal=False, pos_encoding_mode="NONE", use_fp16_qk_reduction=False, logits_soft_cap=None, sm_scale=None,
             rope_scale=None, rope_theta=None, q_data_type="float16", kv_data_type=None, o_data_type=None,
             non_blocking=True, block_mask=None):
        """indptr [ceil(M / R) + 1], indices [indptr[-1]] columns of blocks (best on the CPU). mask bool
        [indptr[-1], R, C] keeps some pairs of a block; packed_mask: its bits in FlashInfer's order. o_data_type: None, or
        what q has."""
        _refuse.positions_of_blocks(causal, pos_encoding_mode, rope_scale, rope_theta)
        _refuse.unless((False,), use_fp16_qk_reduction=use_fp16_qk_reduction)
        _refuse.unless_none(block_mask=block_mask)
        indptr, indices = host(indptr), host(indices)
        self._check(indptr, indices, M, N, R, C, mask)
        rows = (torch.arange(len(indptr), dtype=torch.int32) * R).clamp(max=M)
        config = config_of(num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, page_size=C,
                           q_data_type=q_data_type, kv_data_type=kv_data_type, sm_scale=sm_scale, max_qo_len=R,
                           o_data_type=o_data_type)
        blocks = indptr.diff()
        flat = None if mask is None or packed_mask is not None else _flat_mask(mask, indptr, rows.diff())
        kind, tensors = mask_tensors(flat, packed_mask, rows.diff(), blocks * C, self.device)
        parts, params = parts_of(logits_soft_cap=logits_soft_cap, mask=kind)
        self._shape = N, C
        self._pages = indices.to(self.device, non_blocking=non_blocking)
        self._planned.plan(self.device, config, parts, {"qo_indptr": rows, "kv_indptr": indptr,
                                                        "last_page_len": C * (blocks > 0).int()}, params, tensors)

    @staticmethod
    def _check(indptr, indices, M, N, R, C, mask):
        if N % C or len(indptr) - 1 != -(-M // R):
            raise InputError(f"M={M} rows in blocks of R={R} and N={N} keys in blocks of C={C}: C must divide N, and "
                             f"indptr have {-(-M // R) + 1} entries; it has {len(indptr)}.")
        used = indices[:int(indptr[-1])]
        if len(used) != int(indptr[-1]) or (len(used) and not 0 <= int(used.min()) <= int(used.max()) < N // C):
            raise InputError(f"indices must hold {int(indptr[-1])} columns of blocks from 0 to {N // C - 1}.")
        if mask is not None and tuple(mask.shape) != (int(indptr[-1]), R, C):
            raise InputError(f"mask has shape {tuple(mask.shape)}; it must be ({int(indptr[-1])}, {R}, {C}).")

    begin_forward = plan

    def run(self, q, k, v, scale_q=None, scale_k=None, scale_v=None, out=None, lse=None, return_lse=False,
            enable_pdl=None):
        """q [M, num_qo_heads, head_dim], k and v [N, num_kv_heads, head_dim] -> like q, and [M, num_qo_heads] base 2."""
        if self._planned.batch is None:
            raise InputError("run() was called before plan().")
        num_keys, width = self._shape
        if len(k) != num_keys or len(v) != num_keys:
            raise InputError(f"k and v have {len(k)} and {len(v)} keys; plan() was told N={num_keys}.")
        k, v = (x.unflatten(0, (num_keys // width, width)) for x in (k, v))
        return self._planned.run(q, k, v, out=out, lse=lse, return_lse=return_lse, sinks=None, v_scale=scale_v,
                                 layout="NHD", kv_indices=self._pages, scale=scale_of(scale_q=scale_q, scale_k=scale_k))

    run_return_lse = functools.partialmethod(run, return_lse=True)


def _pages_of_blocks(chosen, widths, page):
    """(pages of each head's rows of blocks [heads * rows], their ids). chosen [heads, rows, columns] bool, widths
    [heads, columns] keys; a head's keys follow the head's before."""
    pages = widths // page
    begins = (pages.flatten().cumsum(0) - pages.flatten()).view_as(pages)
    head, _, column = chosen.nonzero(as_tuple=True)
    counts, first = pages[head, column], begins[head, column]
    ids = torch.arange(int(counts.sum())) + torch.repeat_interleave(first - (counts.cumsum(0) - counts), counts)
    return (chosen * pages[:, None]).sum(2).flatten(), ids.to(torch.int32)


class VariableBlockSparseAttentionWrapper(Deprecated):
    """FlashInfer's class of this name, on heddle: for each kv head a mask of blocks, whose sizes may differ.

    Each kv head's rows of blocks are requests of its group of query heads over one head of keys, in pages of the
    largest size that divides all blocks: sizes with a common divisor are read faster.
    """

    def __init__(self, float_workspace_buffer, backend="auto"):
        _refuse.backend(backend)
        self.device = float_workspace_buffer.device
        self._planned = Planned()

    def plan(self, block_mask_map, block_row_sz, block_col_sz, num_qo_heads, num_kv_heads, head_dim, causal=False,
             pos_encoding_mode="NONE", use_fp16_qk_reduction=False, logits_soft_cap=None, sm_scale=None,
             rope_scale=None, rope_theta=None, non_blocking=True, q_data_type="float16", kv_data_type=None):
        """block_mask_map [num_kv_heads, rows, columns] bool, block_row_sz [num_kv_heads, rows] and block_col_sz
        [num_kv_heads, columns] (best on the CPU); the sizes of each head sum up to the same."""
        _refuse.positions_of_blocks(causal, pos_encoding_mode, rope_scale, rope_theta)
        _refuse.unless((False,), use_fp16_qk_reduction=use_fp16_qk_reduction)
        chosen, rows, widths = block_mask_map.cpu() != 0, block_row_sz.cpu().long(), block_col_sz.cpu().long()
        self._check(chosen, rows, widths, num_qo_heads, num_kv_heads)
        page = max(1, math.gcd(*widths.unique().tolist()))
        counts, ids = _pages_of_blocks(chosen, widths, page)
        self._heads, self._page = (num_kv_heads, num_qo_heads // num_kv_heads), page
        self._lengths = int(rows[0].sum()), int(widths[0].sum())
        self._pages = ids.to(self.device, non_blocking=non_blocking)
        config = config_of(num_qo_heads=self._heads[1], num_kv_heads=1, head_dim=head_dim, page_size=page,
                           q_data_type=q_data_type, kv_data_type=kv_data_type, o_data_type=None, sm_scale=sm_scale)
        parts, params = parts_of(logits_soft_cap=logits_soft_cap)
        self._planned.plan(self.device, config, parts, {"qo_indptr": _indptr(rows.flatten()), "kv_indptr":
                           _indptr(counts), "last_page_len": page * (counts > 0).int()}, params, {})

    @staticmethod
    def _check(chosen, rows, widths, num_qo_heads, num_kv_heads):
        if chosen.shape != (num_kv_heads, rows.shape[-1], widths.shape[-1]) or num_qo_heads % num_kv_heads or (
                len(rows) != num_kv_heads or len(widths) != num_kv_heads):
            raise InputError(f"block_mask_map has shape {tuple(chosen.shape)}, block_row_sz {tuple(rows.shape)} and "
                             f"block_col_sz {tuple(widths.shape)} for {num_qo_heads} and {num_kv_heads} heads; they "
                             "must be [kv heads, rows, columns], [kv heads, rows] and [kv heads, columns].")
        for name, sizes in (("block_row_sz", rows), ("block_col_sz", widths)):
            if bool((sizes < 0).any()) or bool((sizes.sum(1) != sizes[0].sum()).any()):
                raise InputError(f"{name} sums up to {sizes.sum(1).tolist()}; every head must have the same length, of "
                                 "sizes of at least 0.")

    begin_forward = plan

    def run(self, q, k, v, out=None, lse=None, return_lse=False, enable_pdl=None):
        """q [num_qo_heads, qo_len, head_dim], k and v [num_kv_heads, kv_len, head_dim] -> like q, and
        [num_qo_heads, qo_len] base 2. K and V that are not contiguous, and q of groups, are copied."""
        if self._planned.batch is None:
            raise InputError("run() was called before plan().")
        heads, group = self._heads
        qo_len, kv_len = self._lengths
        if q.shape[:2] != (heads * group, qo_len) or k.shape[:2] != (heads, kv_len) or v.shape != k.shape:
            raise InputError(f"q, k and v have shapes {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}; plan() "
                             f"was told [{heads * group}, {qo_len}, head_dim] and [{heads}, {kv_len}, head_dim].")
        if (out is not None and out.shape != q.shape) or (lse is not None and lse.shape != q.shape[:2]):
            raise InputError(f"out must have shape {tuple(q.shape)} and lse {tuple(q.shape[:2])}.")
        rows = q.unflatten(0, (heads, group)).transpose(1, 2).reshape(heads * qo_len, group, q.shape[2])
        k, v = (x.reshape(-1, self._page, 1, x.shape[2]) for x in (k, v))
        o, sums = self._planned.run(rows, k, v, out=None, lse=None, return_lse=True, sinks=None, v_scale=None,
                                    layout="NHD", kv_indices=self._pages)
        o = o.view(heads, qo_len, group, -1).transpose(1, 2).reshape(q.shape)
        sums = sums.view(heads, qo_len, group).transpose(1, 2).reshape(q.shape[:2])
        o = o if out is None else out.copy_(o)
        sums = sums if lse is None else lse.copy_(sums)
        return (o, sums) if return_lse else o

    run_return_lse = functools.partialmethod(run, return_lse=True)
