"""An attention for Hugging Face models: import this module, then load with attn_implementation="heddle".

    import heddle.transformers
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="heddle", dtype=torch.bfloat16)

Inference only, in bfloat16 or float16. Soft caps, sliding windows and attention sinks run in the kernel. Where a mask
is more than causal and a window (padding, a static cache, chunks), Transformers makes it as for sdpa and the kernel
reads it. Keys and values are read where the cache has them: one request as ragged rows, a batch as pages of one row.
"""
import threading

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from heddle import InputError, UnsupportedError
from heddle._planned import planned_of_thread

_of_thread = threading.local()

_NOT_GIVEN = object()

# What would change the result and this attention does not do.
_REFUSED = ("position_bias", "head_mask", "cu_seq_lens_q", "cu_seq_lens_k", "block_table")


def _check(query, key, value, dropout, more):
    if dropout:
        raise UnsupportedError(f"dropout={dropout} is not supported by heddle, which has no backward pass; call eval().")
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        raise UnsupportedError("heddle has no backward pass; run the model under torch.no_grad().")
    if value.shape[-1] != query.shape[-1]:
        raise UnsupportedError(f"value has head_dim {value.shape[-1]} and query {query.shape[-1]}; they must be equal.")
    for name in _REFUSED:
        if more.get(name) is not None:
            raise UnsupportedError(f"{name}={more[name]!r} is not supported by heddle's attention.")
    if more.get("output_attentions"):
        raise UnsupportedError("output_attentions=True is not supported: heddle never has the weights as a whole.")


def _is_padded(attention_mask, kv_offset, kv_length):
    if attention_mask is None:
        return False
    kept = attention_mask[:, kv_offset:kv_offset + kv_length]
    return kept.shape[1] < kv_length or not bool(kept.all())


def _is_declared(q_length=None, kv_length=None, q_offset=0, kv_offset=0, attention_mask=None, local_size=None,
                 allow_is_causal_skip=True, config=None, **_):
    """Whether a mask is causal and a window alone, with the last row at the last key."""
    if not allow_is_causal_skip or not all(isinstance(n, int) for n in (q_length, kv_length, q_offset, kv_offset)):
        return False  # a static cache counts in tensors
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or q_offset + q_length != kv_offset + kv_length:
        return False
    # Chunks come as a local_size too.
    if local_size is not None and (local_size != getattr(config, "sliding_window", None)
                                   or local_size == getattr(config, "attention_chunk_size", None)):
        return False
    return not _is_padded(attention_mask, kv_offset, kv_length)


def mask(**words):
    """Transformers' mask function for heddle, with the words of its sdpa_mask: None where causal and the layer's
    window say it all."""
    declared = _is_declared(**words)
    if declared and words.get("local_size") is not None:
        _of_thread.without_window = words["config"]
    made = None if declared else sdpa_mask(**words)
    if made is None and 1 < words.get("q_length", 1) < words["kv_length"]:
        prompts = _of_thread.__dict__.setdefault("prompts", {})
        if len(prompts) > 64:
            prompts.clear()
        prompts[words["q_length"], words["kv_length"]] = not declared
    return made


def _is_prompt(qo_len, kv_len):
    """Whether the step is the first of a static cache: what lies behind the prompt is not there yet. sdpa_mask gives
    None for that too, so mask() notes which of the two its None was."""
    return kv_len > qo_len and _of_thread.__dict__.get("prompts", {}).get((qo_len, kv_len), True)


def _window_of(module):
    """Of a layer that does not say, but whose model asked for a mask with a window and got None."""
    config = getattr(module, "config", None)
    if config is None or _of_thread.__dict__.get("without_window") is not config:
        return None
    kinds = getattr(config, "layer_types", None)
    is_sliding = kinds is None or kinds[module.layer_idx] == "sliding_attention"
    return config.sliding_window if is_sliding else None


def _dense(mask, batch, qo_len, kv_len):
    """[batch, 1, qo_len, >= kv_len] bool -> [batch * qo_len, kv_len] u8."""
    if mask.dtype != torch.bool or mask.dim() != 4 or mask.shape[1] != 1 or mask.shape[2] != qo_len:
        raise InputError(f"attention_mask is {mask.dtype} {tuple(mask.shape)}; heddle's attention takes bool "
                         f"[batch, 1, {qo_len}, {kv_len}].")
    return mask[:, 0, :, :kv_len].expand(batch, qo_len, kv_len).reshape(batch * qo_len, kv_len).view(torch.uint8)


def _page_ids(batch, kv_len, row_of_batch, device):
    """Pages of one row: request b's are the rows from b * row_of_batch on. Kept for the layers of a step."""
    key = batch, kv_len, row_of_batch, device
    if _of_thread.__dict__.get("pages_of") != key:
        begin = torch.arange(batch, device=device, dtype=torch.int32)[:, None] * row_of_batch
        _of_thread.pages = (begin + torch.arange(kv_len, device=device, dtype=torch.int32)).reshape(-1)
        _of_thread.pages_of = key
    return _of_thread.pages


def _rows(key, value):
    """Keys and values [batch, heads, kv_len, dim] as rows [kv_len, heads, dim] (one request), or as the pages
    [rows, 1, heads, dim] of a batch with their ids. No copy where key and value lie alike, as caches do."""
    batch, heads, kv_len, dim = key.shape
    if batch == 1:
        return key[0].transpose(0, 1), value[0].transpose(0, 1), None
    if key.stride() != value.stride() or key.stride(3) != 1 or key.stride(0) % key.stride(2):
        key, value = key.contiguous(), value.contiguous()
    of_batch, of_head, of_row, _ = key.stride()
    num_pages = (batch - 1) * (of_batch // of_row) + kv_len
    shape, strides = (num_pages, 1, heads, dim), (of_row, of_row, of_head, 1)
    pages = _page_ids(batch, kv_len, of_batch // of_row, key.device)
    return key.as_strided(shape, strides), value.as_strided(shape, strides), pages


def attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, softcap=None,
              sliding_window=_NOT_GIVEN, s_aux=None, **more):
    """query [batch, heads, qo_len, dim], key and value [batch, kv_heads, kv_len, dim] ->
    ([batch, qo_len, heads, dim], None), as Transformers' attention functions."""
    _check(query, key, value, dropout, more)
    batch, heads, qo_len, dim = query.shape
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    causal = causal and attention_mask is None and qo_len > 1
    if causal and _is_prompt(qo_len, key.shape[2]):
        key, value = key[:, :, :qo_len], value[:, :, :qo_len]
    kv_len = key.shape[2]
    if sliding_window is _NOT_GIVEN:
        sliding_window = _window_of(module)
    # A mask holds the window already.
    window = sliding_window if attention_mask is None and sliding_window and kv_len > sliding_window else None
    parts = {"causal": causal, "window": window is not None, "soft_cap": softcap is not None,
             "mask": None if attention_mask is None else "dense"}
    params = {**({"window_left": window - 1} if window else {}), **({"cap": softcap} if softcap is not None else {})}
    tensors = {} if attention_mask is None else {"mask": _dense(attention_mask, batch, qo_len, kv_len)}
    k, v, pages = _rows(key, value)
    config = {"num_qo_heads": heads, "num_kv_heads": key.shape[1], "head_dim": dim,
              "page_size": 0 if pages is None else 1, "q_dtype": query.dtype, "kv_dtype": key.dtype,
              "sm_scale": scaling}
    lengths = {"qo_indptr": list(range(0, (batch + 1) * qo_len, qo_len)),
               "kv_indptr": list(range(0, (batch + 1) * kv_len, kv_len))}
    if pages is not None:
        lengths["last_page_len"] = [1] * batch
    planned = planned_of_thread((query.device, tuple(config.items()), tuple(parts.items()), s_aux is not None))
    planned.with_sinks = s_aux is not None
    planned.plan_once(query.device, config, parts, lengths, params, tensors)
    q = query.transpose(1, 2).reshape(batch * qo_len, heads, dim)
    o = planned.run(q, k, v, out=None, lse=None, return_lse=False, v_scale=None, layout="NHD", kv_indices=pages,
                    sinks=None if s_aux is None else s_aux.float())
    return o.view(batch, qo_len, heads, dim), None


AttentionInterface.register("heddle", attention)
AttentionMaskInterface.register("heddle", mask)
