"""append_kv on the CPU device: new rows in their places and nothing else written; then attention over them."""
import numpy as np
import pytest

import heddle
import reference

HEADS, KV_HEADS, DIM, PAGE = 4, 2, 32, 16
SHAPE = {"num_qo_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM}
MAXIMA = {"max_requests": 8, "max_qo_rows": 64, "max_kv_tokens": 4096}
# Four requests with 1, 5, 0 and 18 new rows; the last one is new as a whole.
QO, KV, LAST, PAGES = [0, 1, 6, 6, 24], [0, 3, 5, 6, 8], [8, 7, 3, 2], [5, 0, 2, 1, 7, 3, 6, 4]
LENGTHS = [40, 23, 3, 18]


def rotated(x, positions, theta=1e4):
    """Rotary positions of rows x [rows, heads, dim], halves paired."""
    half = x.shape[-1] // 2
    angle = np.asarray(positions)[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = (f(angle)[:, None] for f in (np.cos, np.sin))
    return np.concatenate([x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], -1)


class Step:
    """Pages whose every slot holds a value of its own, and new rows as views of a fused array; bf16 as uint16."""

    def __init__(self, seed=1):
        rng = np.random.default_rng(seed)
        self.k, self.v = (reference.bf16_bits(rng.standard_normal((8, PAGE, KV_HEADS, DIM))) for _ in range(2))
        self.qkv = reference.bf16_bits(rng.standard_normal((24, HEADS + 2 * KV_HEADS, DIM)))
        self.q, self.new_k, self.new_v = np.split(self.qkv, [HEADS, HEADS + KV_HEADS], 1)
        self.o, self.lse = np.full((24, HEADS, DIM), 0x7FC0, np.uint16), np.full((24, HEADS), np.nan, np.float32)
        self.pages = np.array(PAGES, np.int32)

    def places(self):
        """Of each new row: page, slot, position."""
        for r, length in enumerate(LENGTHS):
            for position in range(length - QO[r + 1] + QO[r], length):
                yield PAGES[KV[r] + position // PAGE], position % PAGE, position

    def appended(self):
        """The pools as they must be after a copy."""
        k, v = self.k.copy(), self.v.copy()
        for row, (page, slot, _) in enumerate(self.places()):
            k[page, slot], v[page, slot] = self.new_k[row], self.new_v[row]
        return k, v

    def check_attention(self, q, k, v):
        o, lse = reference.batch(q, QO, reference.paged(k, v, KV, LAST, self.pages), causal=True)
        reference.assert_close(reference.from_bf16_bits(self.o), o, 0.02)
        reference.assert_close(self.lse, lse, 5e-3)


def planned(engine, **words):
    attention = engine.attention(**{"variant": "causal", "append_kv": "copy", **SHAPE, **words})
    workspace = attention.workspace(**MAXIMA)
    attention.plan(workspace, QO, KV, LAST)
    return attention, workspace


def test_rows_in_their_places_and_attention_over_them(engine):
    attention, workspace = planned(engine)
    assert attention.config.append_kv == "copy"
    step = Step()
    k, v = step.appended()
    attention.append_kv(workspace, step.new_k, step.new_v, step.k, step.v, kv_indices=step.pages)
    assert (step.k == k).all() and (step.v == v).all()
    attention.run(workspace, step.q, step.k, step.v, step.o, kv_indices=step.pages, lse=step.lse)
    step.check_attention(*(reference.from_bf16_bits(x) for x in (step.q, k, v)))


def test_hnd_and_torch(engine):
    torch = pytest.importorskip("torch")
    attention, workspace = planned(engine)
    step = Step()
    k, v = step.appended()
    as_torch = lambda x: torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)  # noqa: E731
    qkv = as_torch(step.qkv)
    pools = [as_torch(np.ascontiguousarray(x.swapaxes(1, 2))) for x in (step.k, step.v)]
    attention.append_kv(workspace, qkv[:, HEADS:HEADS + KV_HEADS], qkv[:, HEADS + KV_HEADS:], *pools, layout="HND",
                        kv_indices=torch.tensor(PAGES, dtype=torch.int32))
    for pool, wanted in zip(pools, (k, v)):
        assert (pool.view(torch.int16).numpy().view(np.uint16).swapaxes(1, 2) == wanted).all()


def test_ragged_rows(engine):
    attention = engine.attention(variant="causal", append_kv="copy", page_size=0, **SHAPE)
    workspace = attention.workspace(**MAXIMA)
    begin = np.cumsum([0, *LENGTHS])
    attention.plan(workspace, QO, begin)
    step = Step()
    k, v = (x.reshape(-1, KV_HEADS, DIM)[:begin[-1]].copy() for x in (step.k, step.v))
    wanted = k.copy(), v.copy()
    for r in range(4):
        rows = slice(QO[r], QO[r + 1])
        wanted[0][begin[r + 1] - QO[r + 1] + QO[r]:begin[r + 1]] = step.new_k[rows]
        wanted[1][begin[r + 1] - QO[r + 1] + QO[r]:begin[r + 1]] = step.new_v[rows]
    attention.append_kv(workspace, step.new_k, step.new_v, k, v)
    assert (k == wanted[0]).all() and (v == wanted[1]).all()


def test_transform_stores_turned_keys(engine):
    engine.register_variant({"name": "causal_rope", "compose": ["causal", "rope"]})
    attention, workspace = planned(engine, variant="causal_rope", append_kv="transform")
    step, theta = Step(), 500.0
    f = reference.from_bf16_bits
    before = step.k.copy(), step.v.copy()
    k, v = step.appended()
    turned = f(k).astype(np.float64)
    for row, (page, slot, position) in enumerate(step.places()):
        turned[page, slot] = rotated(f(step.new_k[row:row + 1]), [position], theta)[0]
    for call in (attention.append_kv, lambda *a, **w: attention.run(a[0], step.q, *a[3:], step.o, lse=step.lse, **w)):
        call(workspace, step.new_k, step.new_v, step.k, step.v, kv_indices=step.pages, params={"theta": theta})
    assert np.abs(f(step.k) - turned).max() < 0.02 and (step.v == v).all()
    untouched = (k == before[0]).all((2, 3))  # slots that no new row went to
    assert (step.k[untouched] == before[0][untouched]).all()
    q = f(step.q).astype(np.float64)
    for r, length in enumerate(LENGTHS):
        rows = slice(QO[r], QO[r + 1])
        q[rows] = rotated(q[rows], range(length - QO[r + 1] + QO[r], length), theta)
    step.check_attention(q, turned, f(v))


def test_what_is_refused(engine):
    attention, workspace = planned(engine)
    step = Step()
    given = [step.new_k, step.new_v, step.k, step.v]
    append = lambda made, *a, **w: made.append_kv(workspace, *a, **{"kv_indices": step.pages, **w})  # noqa: E731
    plain = engine.attention(**SHAPE)
    read_only = step.k.copy()
    read_only.flags.writeable = False
    for call, words in [
            (lambda: plain.append_kv(plain.workspace(**MAXIMA), *given), "made with append_kv = none"),
            (lambda: attention.append_kv(attention.workspace(**MAXIMA), *given), "before plan"),
            (lambda: append(attention, *given, params={"cap": 1.0}), "takes none"),
            (lambda: append(attention, *given, tensors={"bias": step.lse}), "reads none"),
            (lambda: append(attention, *given, kv_indices=None), "kv_indices was not given"),
            (lambda: append(attention, step.new_k[:3], *given[1:]), "new_k"),
            (lambda: append(attention, step.k[0], *given[1:]), "new_k"),
            (lambda: append(attention, step.new_k, step.new_v, read_only, step.v), "Tensor k is read-only"),
            (lambda: attention.plan(workspace, [0, 5], [0, 1], [3]), "kv_len counts its qo_len new keys"),
            (lambda: engine.attention(append_kv="yes", **SHAPE), 'append_kv is "yes"; it must be'),
            (lambda: engine.attention(append_kv="transform", **SHAPE), "neither a key_transform nor a value_transform")]:
        with pytest.raises(heddle.InputError) as caught:
            call()
        assert words in str(caught.value), str(caught.value)


def test_compiled_ahead_of_time(tmp_path):
    config = {"variant": "rope", **SHAPE, "max_qo_len": 1, "append_kv": "transform"}
    try:
        made = heddle.cache.warm([config], archs=["sm_90a"], dir=str(tmp_path))
    except heddle.UnsupportedError as error:
        pytest.skip(str(error))  # NVRTC is not found
    assert [kernel.kernel for kernel in made] == ["decode", "append_kv"]
    assert all(kernel.registers > 0 and kernel.spill_bytes == 0 for kernel in made)
