"""What the two prefill wrappers share: the mask, the parts of the variant, the maxima of a graph."""
import torch

from heddle import InputError
from heddle._planned import Planned
from heddle.flashinfer import _refuse
from heddle.flashinfer._arguments import Deprecated, parts_of, scale_of
from heddle.flashinfer.quantization import segment_packbits

ITEMS = ("prefix_len_ptr", "token_pos_in_items_ptr", "token_pos_in_items_len", "max_item_len_ptr")
UNSUPPORTED_IN_PLAN = ("seq_lens", "seq_lens_q", "block_tables", "max_token_per_sequence", "max_sequence_kv", "v_indptr",
                       "o_indptr")


def items_of_plan(more):
    """The words of multi-item scoring. cuDNN's and TensorRT-LLM's are refused; a word that FlashInfer lacks too is a
    TypeError."""
    for name, value in more.items():
        if name in UNSUPPORTED_IN_PLAN:
            _refuse.unless_none(**{name: value})
        elif name not in ITEMS:
            raise TypeError(f"plan() got an unexpected keyword argument {name!r}")
    return [more.get(name) for name in ITEMS]


def items_tensors(prefix_len, places, items_len, longest, kv_len, device):
    """("items", tensors, params) of several items behind each request's prefix: prefix_len [num_requests], places
    [num_requests * items_len], each token's place in its item, 0 between items. The longest item is FlashInfer's hint.
    """
    given = [prefix_len is not None, places is not None, bool(items_len)]
    if not any(given) and longest is None:
        return None, {}, {}
    if not all(given) or prefix_len.numel() < len(kv_len):
        raise InputError("Multi-item scoring takes prefix_len_ptr [num_requests], token_pos_in_items_ptr "
                         "[num_requests * token_pos_in_items_len] and token_pos_in_items_len, for "
                         f"{len(kv_len)} requests.")
    behind = kv_len.long() - prefix_len.reshape(-1)[:len(kv_len)].to("cpu", torch.int64)
    needed = items_len * (len(kv_len) - 1) + int(behind[-1]) if len(kv_len) else 0
    if bool((behind > items_len).any()) or places.numel() < needed:
        raise InputError(f"The requests have {behind.tolist()} keys behind their prefixes; token_pos_in_items_len is "
                         f"{items_len}, and token_pos_in_items_ptr has {places.numel()} entries.")
    as_ints = lambda x: x.reshape(-1).to(device, torch.int32)  # noqa: E731
    return "items", {"prefix_len": as_ints(prefix_len), "place_in_item": as_ints(places)}, {"items_len": items_len}


def _begins(sizes):
    return torch.nn.functional.pad(sizes.cumsum(0), (1, 0))


def mask_tensors(custom_mask, packed_custom_mask, qo_len, kv_len, device):
    """(kind, tensors of the variant): bool [sum(qo_len * kv_len)], or its bits, each request from a new byte."""
    if custom_mask is None and packed_custom_mask is None:
        return None, {}
    kind = "bool" if packed_custom_mask is None else "packed"
    sizes = qo_len.long() * kv_len.long()
    begin = _begins((sizes + 7) // 8 if kind == "packed" else sizes)
    mask = custom_mask if kind == "bool" else packed_custom_mask
    if kind == "bool" and mask.dtype not in (torch.bool, torch.uint8):
        mask = mask != 0
    mask = mask.to(device).contiguous().view(-1).view(torch.uint8)
    if mask.numel() != int(begin[-1]) or int(begin[-1]) >= 2 ** 31:
        raise InputError(f"The {kind} custom mask has {mask.numel()} bytes; the batch needs {int(begin[-1])}, "
                         "which must be below 2^31.")
    return kind, {"mask": mask, "mask_begin": begin[:-1].to(device, torch.int32)}


def mask_in_buffers(custom_mask, packed_custom_mask, qo_len, kv_len, mask_buffer, begin_buffer):
    """The same in a graph's buffers, in bits, for the run() that a graph holds."""
    if custom_mask is None and packed_custom_mask is None:
        return None, {}
    if mask_buffer is None or begin_buffer is None:
        raise InputError("A custom mask in a CUDA graph needs custom_mask_buf and mask_indptr_buf, given when the "
                         "wrapper was made.")
    device, sizes = mask_buffer.device, qo_len.long() * kv_len.long()
    if packed_custom_mask is None:
        packed_custom_mask, _ = segment_packbits(custom_mask.to(device), _begins(sizes), "little")
    _, tensors = mask_tensors(None, packed_custom_mask, qo_len, kv_len, device)
    if tensors["mask"].numel() > mask_buffer.numel() or len(sizes) > begin_buffer.numel():
        raise InputError(f"The batch has {len(sizes)} masks of {tensors['mask'].numel()} bytes; mask_indptr_buf holds "
                         f"{begin_buffer.numel()} begins and custom_mask_buf {mask_buffer.numel()} bytes.")
    mask_buffer[:tensors["mask"].numel()].copy_(tensors["mask"])
    begin_buffer[:len(sizes)].copy_(tensors["mask_begin"])
    return "packed", {"mask": mask_buffer, "mask_begin": begin_buffer}


class Prefill(Deprecated):
    def __init__(self, float_workspace_buffer, kv_layout, use_cuda_graph, buffers, mask_buffers, backend, jit_args,
                 jit_kwargs):
        self._takes_sink = _refuse.names_a_sink(jit_args, jit_kwargs)
        _refuse.backend(backend)
        if any((buffer is not None) != use_cuda_graph for buffer in buffers.values()):
            raise InputError(f"use_cuda_graph is {use_cuda_graph}; {', '.join(buffers)} belong to it, all or none.")
        self.device = float_workspace_buffer.device
        self._layout = _refuse.layout(kv_layout)
        self._use_cuda_graph = use_cuda_graph
        self._buffers, self._mask_buffers = buffers, mask_buffers
        self._planned = Planned()

    @property
    def is_cuda_graph_enabled(self):
        return self._use_cuda_graph

    def _plan(self, config, batch, kv_len, max_kv_tokens, *, custom_mask, packed_custom_mask, items, **words):
        qo_len = batch["qo_indptr"].diff()
        scoring, item_tensors, item_params = items_tensors(*items, kv_len, self.device)
        if scoring and (self._use_cuda_graph or custom_mask is not None or packed_custom_mask is not None):
            _refuse.unless_none(**dict(zip(ITEMS[:1], items)))  # no graph's buffer holds it, and no other mask beside
        if self._use_cuda_graph:
            if self._planned.limits is None:  # as FlashInfer: the first plan's rows are the most
                self._planned.limits = {"max_requests": len(self._buffers["qo_indptr_buf"]) - 1,
                                        "max_qo_rows": int(batch["qo_indptr"][-1]), "max_kv_tokens": max_kv_tokens}
            mask, tensors = mask_in_buffers(custom_mask, packed_custom_mask, qo_len, kv_len, *self._mask_buffers)
        else:
            mask, tensors = mask_tensors(custom_mask, packed_custom_mask, qo_len, kv_len, self.device)
        if scoring:
            mask, tensors, words["causal"] = scoring, item_tensors, True
        parts, params = parts_of(mask=mask, **words)
        params.update(item_params)
        self._window_left = words["window_left"]
        self._planned.plan(self.device, config, parts, batch, params, tensors)

    def _run(self, q, k, v, args, *, sinks, q_scale, k_scale, **words):
        """args: what a variant of jit_args takes, for AttentionSink its sink and sm_scale."""
        scale = scale_of(q_scale=q_scale, k_scale=k_scale)
        if self._takes_sink:
            if len(args) not in (1, 2) or sinks is not None:
                raise InputError("run() of a wrapper with a sink takes it behind the keys and values, then sm_scale: "
                                 "run(q, paged_kv_cache, sink, sm_scale).")
            planned = self._planned.config["sm_scale"] or q.shape[-1] ** -0.5
            sinks, scale = args[0], scale * ((args[1] if len(args) == 2 else planned) / planned)
        elif args:
            _refuse.unless_none(args=args)
        return self._planned.run(q, k, v, sinks=sinks, scale=scale, **words)
