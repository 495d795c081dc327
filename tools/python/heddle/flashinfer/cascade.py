"""Merging of attention states (v, s), s the base-2 log of the weights' sum. In PyTorch, f32 throughout."""
import torch


def _weights(s, top):
    # A state without keys has s = -inf and weighs nothing, also where all are so.
    return torch.exp2(s - torch.where(torch.isinf(top), torch.zeros_like(top), top))


def merge_states(v, s):
    """v [rows, num_states, heads, dim], s [rows, num_states, heads] -> v [rows, heads, dim], s [rows, heads]."""
    s = s.float()
    top = s.amax(1, keepdim=True)
    weights = _weights(s, top)
    total = weights.sum(1)
    merged = (weights.unsqueeze(-1) * torch.where(weights.unsqueeze(-1) > 0, v.float(), 0.0)).sum(1)
    merged = merged / total.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(-1)
    return merged.to(v.dtype), torch.log2(total) + torch.where(torch.isinf(top), torch.zeros_like(top), top).squeeze(1)


def merge_state(v_a, s_a, v_b, s_b):
    """v [rows, heads, dim], s [rows, heads] of two states over disjoint keys -> their union's."""
    return merge_states(torch.stack([v_a, v_b], 1), torch.stack([s_a, s_b], 1))


def merge_state_in_place(v, s, v_other, s_other, mask=None):
    """Merges the other state into (v, s); `mask` [rows] bool: only into these rows."""
    merged_v, merged_s = merge_state(v, s, v_other, s_other)
    if mask is not None:
        merged_v = torch.where(mask.bool()[:, None, None], merged_v, v)
        merged_s = torch.where(mask.bool()[:, None], merged_s, s)
    v.copy_(merged_v)
    s.copy_(merged_s)
