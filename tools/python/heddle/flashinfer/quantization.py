"""Bits of custom masks, as FlashInfer packs them. In PyTorch."""
import torch

from heddle import InputError


def segment_packbits(x, indptr, bitorder="big"):
    """x [indptr[-1]], zero or not -> (u8 bits, each segment from a new byte; [segments + 1] int32 bytes)."""
    if bitorder not in ("big", "little"):
        raise InputError(f"bitorder is {bitorder!r}; it must be 'big' or 'little'.")
    indptr = indptr.to(x.device, torch.int64)
    sizes = indptr.diff()
    begin = torch.nn.functional.pad(((sizes + 7) // 8).cumsum(0), (1, 0))
    at = torch.arange(x.numel(), device=x.device) - torch.repeat_interleave(indptr[:-1] - 8 * begin[:-1], sizes)
    bits = torch.zeros(8 * int(begin[-1]), dtype=torch.uint8, device=x.device)
    bits[at] = (x.reshape(-1) != 0).to(torch.uint8)
    weights = torch.tensor([1 << (7 - b if bitorder == "big" else b) for b in range(8)], dtype=torch.uint8,
                           device=x.device)
    return (bits.view(-1, 8) * weights).sum(1, dtype=torch.uint8), begin.to(torch.int32)


def packbits(x, bitorder="big"):
    """Like numpy.packbits: x, zero or not -> u8 [(numel + 7) // 8]."""
    return segment_packbits(x, torch.tensor([0, x.numel()]), bitorder)[0]
