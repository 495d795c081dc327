"""Variants put together from parts, and the Attentions made of them, one for each shape."""
import functools
import threading

import heddle

LOG2_E = 1.4426950408889634  # FlashInfer's lse is a log2, heddle's a natural logarithm

# Row of the request's own mask, key: both forms count rows from the request's first query row.
_ELEMENT = "(long long)(q_pos - kv_len + qo_len) * kv_len + kv_pos"
_MASKS = {
    "dense": "return tensors.mask(q_row, kv_pos) != 0;",
    "bool": f"return tensors.mask(tensors.mask_begin[request] + {_ELEMENT}) != 0;",
    "packed": f"const long long bit = {_ELEMENT};\n"
              "return (tensors.mask(tensors.mask_begin[request] + (bit >> 3)) >> (bit & 7)) & 1;",
}


def spec(causal, window, soft_cap, mask, sinks):
    """A variant of the given parts. `mask` is None; "bool" or "packed", FlashInfer's, each request's behind the
    other's; or "dense", [num_qo_rows, kv_len]."""
    name = "_".join(["parts", *(word for word, part in
                                     (("causal", causal), ("window", window), ("cap", soft_cap), (mask, mask),
                                      ("sinks", sinks)) if part)])
    out = {"name": name, "params": {}, "tensors": {}, "hooks": {}, "mask": {}}
    if causal:
        out["mask"]["causal"] = True
    if window:
        out["params"]["window_left"] = {"type": "i32", "default": 0, "min": 0}
        out["mask"]["window_left"] = "window_left"
    if soft_cap:
        out["params"]["cap"] = {"type": "f32", "default": 30.0, "min": 1e-6}
        out["hooks"]["logits_transform"] = "return params.cap * tanh(logit / params.cap);"
    if mask:
        out["tensors"]["mask"] = {"dtype": "u8", "shape": ["num_qo_rows", "kv_len"] if mask == "dense" else ["1"]}
        if mask != "dense":
            out["tensors"]["mask_begin"] = {"dtype": "i32", "shape": ["num_requests"]}
        out["hooks"]["logits_mask"] = _MASKS[mask]
    if sinks:
        out["tensors"]["sinks"] = {"dtype": "f32", "shape": ["num_qo_heads"]}
        out["hooks"]["initial_state"] = "return tensors.sinks[qo_head];"
    return {key: value for key, value in out.items() if value}


_lock = threading.Lock()


@functools.lru_cache(maxsize=None)
def _engine(device):
    return heddle.Engine(device)


@functools.lru_cache(maxsize=None)
def _attention(device, parts, config):
    engine = _engine(device)
    variant = engine.register_variant(spec(*parts))
    return engine.attention(variant=variant.name, **dict(config))


def attention(device, *, causal=False, window=False, soft_cap=False, mask=None, sinks=False, **config):
    """The Attention of these parts and AttentionConfig words; made once."""
    device = f"cuda:{device.index or 0}" if device.type == "cuda" else device.type
    with _lock:
        return _attention(device, (causal, window, soft_cap, mask, sinks), tuple(sorted(config.items())))
