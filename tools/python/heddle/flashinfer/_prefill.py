"""What the two prefill wrappers share: the mask, the parts of the variant, the maxima of a graph."""
import torch

from heddle import InputError
from heddle.flashinfer import _refuse
from heddle._planned import Planned
from heddle.flashinfer._arguments import soft_cap_of

UNSUPPORTED_IN_PLAN = ("prefix_len_ptr", "token_pos_in_items_ptr", "max_item_len_ptr", "seq_lens", "seq_lens_q",
                       "block_tables", "max_token_per_sequence", "max_sequence_kv", "v_indptr", "o_indptr")


def refuse_in_plan(unknown):
    """Multi-item scoring, cuDNN's and TensorRT-LLM's arguments; a word that FlashInfer lacks too is a TypeError."""
    for name, value in unknown.items():
        if name == "token_pos_in_items_len":
            _refuse.unless((0,), token_pos_in_items_len=value)
        elif name in UNSUPPORTED_IN_PLAN:
            _refuse.unless_none(**{name: value})
        else:
            raise TypeError(f"plan() got an unexpected keyword argument {name!r}")


def mask_tensors(custom_mask, packed_custom_mask, qo_len, kv_len, device):
    """(kind, tensors of the variant): bool [sum(qo_len * kv_len)], or its bits, each request from a new byte."""
    if custom_mask is None and packed_custom_mask is None:
        return None, {}
    kind = "bool" if packed_custom_mask is None else "packed"
    sizes = qo_len.long() * kv_len.long()
    if kind == "packed":
        sizes = (sizes + 7) // 8
    begin = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    mask = (custom_mask if kind == "bool" else packed_custom_mask).to(device).contiguous().view(-1).view(torch.uint8)
    if mask.numel() != int(begin[-1]) or int(begin[-1]) >= 2 ** 31:
        raise InputError(f"The {kind} custom mask has {mask.numel()} bytes; the batch needs {int(begin[-1])}, "
                         "which must be below 2^31.")
    return kind, {"mask": mask, "mask_begin": begin[:-1].to(device, torch.int32)}


class Prefill:
    def __init__(self, float_workspace_buffer, kv_layout, use_cuda_graph, buffers, backend, jit_args, jit_kwargs):
        _refuse.unless_none(jit_args=jit_args, jit_kwargs=jit_kwargs)
        _refuse.backend(backend)
        if any((buffer is not None) != use_cuda_graph for buffer in buffers.values()):
            raise InputError(f"use_cuda_graph is {use_cuda_graph}; {', '.join(buffers)} belong to it, all or none.")
        self.device = float_workspace_buffer.device
        self._layout = _refuse.layout(kv_layout)
        self._use_cuda_graph = use_cuda_graph
        self._buffers = buffers
        self._planned = Planned()

    @property
    def is_cuda_graph_enabled(self):
        return self._use_cuda_graph

    def _plan(self, config, batch, kv_len, max_kv_tokens, *, causal, window_left, logits_soft_cap, custom_mask,
              packed_custom_mask):
        if self._use_cuda_graph:
            _refuse.unless_none(custom_mask=custom_mask, packed_custom_mask=packed_custom_mask)
            if self._planned.limits is None:  # as FlashInfer: the first plan's rows are the most
                self._planned.limits = {"max_requests": len(self._buffers["qo_indptr_buf"]) - 1,
                                        "max_qo_rows": int(batch["qo_indptr"][-1]), "max_kv_tokens": max_kv_tokens}
        qo_len = batch["qo_indptr"].diff()
        mask, tensors = mask_tensors(custom_mask, packed_custom_mask, qo_len, kv_len, self.device)
        cap = soft_cap_of(logits_soft_cap)
        params = {**({"window_left": window_left} if window_left >= 0 else {}), **({"cap": cap} if cap else {})}
        # A custom mask stands in for causal, as in FlashInfer.
        parts = {"causal": causal and mask is None, "window": window_left >= 0, "soft_cap": cap is not None, "mask": mask}
        self._window_left = window_left
        self._planned.plan(self.device, config, parts, batch, params, tensors)
