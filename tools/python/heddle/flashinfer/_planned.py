"""An Attention with its Workspace, planned batch after batch: what every wrapper stands on."""
import torch

from heddle import InputError
from heddle.flashinfer import _refuse, _variants


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


class Planned:
    """Plans batches of one wrapper and runs them. `limits`: the fixed maxima of a wrapper whose runs are
    captured; without it the Workspace grows as batches do."""

    def __init__(self, limits=None):
        self.limits = limits
        self.with_sinks = False  # as run() last wanted it
        self.batch = None
        self.attention = self.workspace = None
        self._room = None
        self._first = None  # what a captured run() was launched with
        self._captured = []  # keeps what graphs may still point to

    def plan(self, device, config, parts, batch, params, tensors):
        """`batch`: plan()'s lists on the CPU. `tensors`: the variant's own, on the device."""
        self.device, self.config, self.parts = device, config, parts
        self.batch, self.params, self.tensors = batch, params, tensors
        if self.limits:
            asked = {**config, **parts, **params}
            self._first = self._first or asked
            if asked != self._first:
                changed = [word for word in asked | self._first if asked.get(word) != self._first.get(word)]
                raise InputError(f"plan() got another {', '.join(changed)} than the first plan of this wrapper, but a "
                                 "captured run() keeps what it was launched with; make another wrapper.")
        self._plan()

    def _plan(self):
        attention = _variants.attention(self.device, sinks=self.with_sinks, **self.parts, **self.config)
        needed = self._needed()
        if attention is not self.attention or not self._fits(needed):
            if self.limits and attention is self.attention:
                raise InputError(f"The batch needs {needed}, but this wrapper's graph was made for {self._room}.")
            if self.limits:
                self._captured.append((self.attention, self.workspace))
            self._room = self.limits or {word: self._grown(word, count) for word, count in needed.items()}
            self.workspace = attention.workspace(**self._room)
            self.attention = attention
        attention.plan(self.workspace, params=self.params, **self.batch)

    def _needed(self):
        qo, kv = self.batch["qo_indptr"], self.batch["kv_indptr"]
        return {"max_requests": len(qo) - 1, "max_qo_rows": int(qo[-1]),
                "max_kv_tokens": int(kv[-1]) * max(1, self.config["page_size"])}

    def _fits(self, needed):
        return self._room is not None and all(needed[word] <= self._room[word] for word in needed)

    def _grown(self, word, count):
        before = self._room[word] if self._room else 0
        return before if count <= before else max(count, 2 * before, 16)

    def run(self, q, k, v, *, out, lse, return_lse, sinks, v_scale, layout, kv_indices=None):
        if self.batch is None:
            raise InputError("run() was called before plan().")
        if (sinks is not None) != self.with_sinks:
            # FlashInfer names sinks in run() alone. From now on plan() plans with, or without them.
            self.with_sinks = sinks is not None
            self._plan()
        tensors = {**self.tensors, "sinks": sinks} if self.with_sinks else self.tensors
        out = torch.empty_like(q) if out is None else out
        if return_lse and lse is None:
            lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        self.attention.run(self.workspace, q, k, v, out, kv_indices=kv_indices, lse=lse, layout=layout,
                           params=self.params, tensors=tensors or None)
        if v_scale is not None and v_scale != 1:
            out.mul_(v_scale)
        if lse is not None:
            lse.mul_(_variants.LOG2_E)
        return (out, lse) if return_lse else out


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
