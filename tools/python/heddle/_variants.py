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
    # A token of an item sees the prefix and, back from itself, as many keys as its place in the item says.
    "items": "const int prefix = tensors.prefix_len[request];\n"
             "if (kv_pos < prefix || q_pos < prefix) return true;\n"
             "return q_pos < kv_pos + tensors.place_in_item(request * params.items_len + q_pos - prefix);",
}
_MASK_TENSORS = {
    "dense": {"mask": ("u8", "num_qo_rows", "kv_len")},
    "bool": {"mask": ("u8", "1"), "mask_begin": ("i32", "num_requests")},
    "packed": {"mask": ("u8", "1"), "mask_begin": ("i32", "num_requests")},
    "items": {"prefix_len": ("i32", "num_requests"), "place_in_item": ("i32", "1")},
}


# FlashInfer's ALiBi counts a row from the request's first: lse differs by that, the output does not.
_ALIBI = """int power = num_qo_heads;
power |= power >> 1, power |= power >> 2, power |= power >> 4, power |= power >> 8;
power = (power + 1) / 2;
const int beyond = qo_head - power;
const auto slope = exp2(beyond < 0 ? -8.0f * (qo_head + 1) / power : -4.0f * (2 * beyond + 1) / power);
"""

_ROTATE = """const auto frequency = params.rope_factor * pow(params.rope_theta, -2.0f * (dim % (head_dim / 2)) / head_dim);
const auto angle = {position} * frequency;
return x * cos(angle) + (dim < head_dim / 2 ? -pair : pair) * sin(angle);"""


def _logits(scale, alibi, soft_cap):
    """The body of logits_transform; "" where there is nothing to do."""
    value = "logit * params.scale" if scale else "logit"
    if alibi:
        value = f"{value} + slope * (kv_pos - (q_pos - kv_len + qo_len))"
    if soft_cap:
        value = f"params.cap * tanh(({value}) / params.cap)"
    return "" if value == "logit" else f"{_ALIBI if alibi else ''}return {value};"


def spec(causal, window, soft_cap, mask, positions, sinks, scale):
    """A variant of the given parts. `mask` is None; "bool" or "packed", FlashInfer's, each request's behind the
    other's; "dense", [num_qo_rows, kv_len]; or "items", several items behind a prefix. `positions` is None, "rope" or "alibi"; `scale` a factor of the
    logits that run() may change."""
    name = "_".join(["parts", *(word for word, part in
                                     (("causal", causal), ("window", window), ("cap", soft_cap), (mask, mask),
                                      (positions, positions), ("sinks", sinks), ("scale", scale)) if part)])
    out = {"name": name, "params": {}, "tensors": {}, "hooks": {}, "mask": {}}
    if causal:
        out["mask"]["causal"] = True
    if window:
        out["params"]["window_left"] = {"type": "i32", "default": 0, "min": 0}
        out["mask"]["window_left"] = "window_left"
    if soft_cap:
        out["params"]["cap"] = {"type": "f32", "default": 30.0, "min": 1e-6}
    if scale:
        out["params"]["scale"] = {"type": "f32", "default": 1.0}
    if logits := _logits(scale, positions == "alibi", soft_cap):
        out["hooks"]["logits_transform"] = logits
    if positions == "rope":
        out["params"]["rope_theta"] = {"type": "f32", "default": 1e4, "min": 1}
        out["params"]["rope_factor"] = {"type": "f32", "default": 1.0, "min": 0}
        for hook, position in (("query_transform", "q_pos"), ("key_transform", "kv_pos")):
            out["hooks"][hook] = {"pair": "half_split", "code": _ROTATE.format(position=position)}
    if mask:
        for tensor, (dtype, *shape) in _MASK_TENSORS[mask].items():
            out["tensors"][tensor] = {"dtype": dtype, "shape": shape}
        out["hooks"]["logits_mask"] = _MASKS[mask]
    if mask == "items":
        out["params"]["items_len"] = {"type": "i32", "default": 0, "min": 0}
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


def attention(device, *, causal=False, window=False, soft_cap=False, mask=None, positions=None, sinks=False,
              scale=False, **config):
    """The Attention of these parts and AttentionConfig words; made once."""
    device = f"cuda:{device.index or 0}" if device.type == "cuda" else device.type
    with _lock:
        return _attention(device, (causal, window, soft_cap, mask, positions, sinks, scale),
                          tuple(sorted(config.items())))
