"""An Attention with its Workspace, planned batch after batch: what heddle.flashinfer and heddle.transformers
stand on."""
import threading

import torch

from heddle import InputError, _variants

_of_thread = threading.local()  # a Workspace belongs to one thread at a time


def planned_of_thread(key):
    """This thread's Planned for `key`, made where there is none."""
    table = _of_thread.__dict__.setdefault("table", {})
    if key not in table:
        table[key] = Planned()
    return table[key]


class Planned:
    """Plans batches of one wrapper and runs them. `limits`: the fixed maxima of a wrapper whose runs are
    captured; without it the Workspace grows as batches do."""

    def __init__(self, limits=None):
        self.limits = limits
        self.with_sinks = False  # as run() last wanted it
        self.with_scale = False  # whether a run() ever wanted one
        self.device = self.config = self.parts = self.batch = self.params = None
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

    def plan_once(self, device, config, parts, batch, params, tensors):
        """plan(), but for nothing new: a plan depends on lengths alone, so all layers of a step share one."""
        if (device, config, parts, batch, params) == (self.device, self.config, self.parts, self.batch, self.params):
            self.tensors = tensors
        else:
            self.plan(device, config, parts, batch, params, tensors)

    def _plan(self):
        attention = _variants.attention(self.device, sinks=self.with_sinks, scale=self.with_scale, **self.parts,
                                        **self.config)
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
        grown = before if count <= before else max(count, 2 * before, 16)
        most = self.config.get("max_requests") if word == "max_requests" else None
        return grown if most is None else min(grown, most)

    def run(self, q, k, v, *, out, lse, return_lse, sinks, v_scale, layout, kv_indices=None, scale=1.0):
        """`scale`: a factor of the logits, beside config's sm_scale."""
        if self.batch is None:
            raise InputError("run() was called before plan().")
        with_scale = self.with_scale or scale != 1
        if (sinks is not None, with_scale) != (self.with_sinks, self.with_scale):
            # FlashInfer names sinks and scales in run() alone. From now on plan() plans with them; without sinks
            # where run() names none.
            self.with_sinks, self.with_scale = sinks is not None, with_scale
            self._plan()
        params = {**self.params, "scale": scale} if with_scale else self.params
        tensors = {**self.tensors, "sinks": sinks} if self.with_sinks else self.tensors
        out = torch.empty_like(q) if out is None else out
        if return_lse and lse is None:
            lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        self.attention.run(self.workspace, q, k, v, out, kv_indices=kv_indices, lse=lse, layout=layout,
                           params=params, tensors=tensors or None)
        if v_scale is not None and not (isinstance(v_scale, (int, float)) and v_scale == 1):
            out.mul_(v_scale)
        if lse is not None:
            lse.mul_(_variants.LOG2_E)
        return (out, lse) if return_lse else out
