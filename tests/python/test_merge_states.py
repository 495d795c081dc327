"""merge_states on the CPU device against its formula."""
import numpy as np
import pytest

import heddle
import reference

ROWS, HEADS, DIM = 7, 3, 24


def states_of(n, seed=1):
    """o [n, rows, heads, dim], lse [n, rows, heads]; a third of them empty, which hold NaN."""
    rng = np.random.default_rng(seed)
    o = rng.standard_normal((n, ROWS, HEADS, DIM)).astype(np.float32)
    lse = (30 * rng.standard_normal((n, ROWS, HEADS))).astype(np.float32)
    empty = rng.random(lse.shape) < 0.33
    empty[:, 0, 0] = True  # a row that no state has keys for
    lse[empty], o[empty] = -np.inf, np.nan
    lse[0, 0, 0] = np.inf  # as some libraries give it
    return o, lse


def merged(o, lse):
    o, lse = np.where(np.isinf(lse)[..., None], 0, o).astype(np.float64), np.where(lse == np.inf, -np.inf, lse)
    top = lse.max(0)
    weights = np.exp(lse - np.where(np.isinf(top), 0, top))
    total = weights.sum(0)
    with np.errstate(divide="ignore"):
        return (weights[..., None] * o).sum(0) / np.where(total > 0, total, 1)[..., None], top + np.log(total)


@pytest.mark.parametrize("n", [1, 2, 5, 64])
@pytest.mark.parametrize("form", ["pairs", "stacked"])
def test_the_formula(engine, n, form):
    o, lse = states_of(n)
    merge = engine.merge_states(head_dim=DIM, o_dtype="f32")
    found, found_lse = np.full(o.shape[1:], np.nan, np.float32), np.full(lse.shape[1:], np.nan, np.float32)
    merge.run(list(zip(o, lse)) if form == "pairs" else (o, lse), found, found_lse)
    wanted, wanted_lse = merged(o, lse)
    reference.assert_close(found, wanted, 1e-5)
    reference.assert_close(found_lse, wanted_lse, 1e-4)
    assert (found[0, 0] == 0).all() and found_lse[0, 0] == -np.inf


def test_in_place_and_half_states(engine):
    o, lse = states_of(3)
    merge = engine.merge_states(head_dim=DIM, state_dtype=np.float16, o_dtype="float16")
    assert (merge.head_dim, merge.state_dtype, merge.o_dtype) == (DIM, "f16", "f16") and merge.kernel.arch == "cpu"
    half = o.astype(np.float16)
    wanted, wanted_lse = merged(half.astype(np.float32), lse)
    merge.run((half, lse), half[1], lse[1])
    reference.assert_close(half[1], wanted, 2e-3)
    reference.assert_close(lse[1], wanted_lse, 1e-4)


def test_parts_of_attention_meet(engine):
    """Two runs over halves of the keys against one over all."""
    attention = engine.attention(num_qo_heads=4, num_kv_heads=2, head_dim=32, page_size=0)
    rng = np.random.default_rng(5)
    q, k, v = (reference.bf16_bits(rng.standard_normal((n, heads, 32))) for n, heads in ((3, 4), (50, 2), (50, 2)))
    states = []
    for part in (slice(0, 20), slice(20, 50)):
        workspace = attention.workspace(max_requests=1, max_qo_rows=8, max_kv_tokens=64)
        states.append((np.empty_like(q), np.empty((3, 4), np.float32)))
        attention.plan(workspace, [0, 3], [0, part.stop - part.start])
        attention.run(workspace, q, k[part], v[part], states[-1][0], lse=states[-1][1])
    o, lse = np.empty_like(q), np.empty((3, 4), np.float32)
    engine.merge_states(head_dim=32, state_dtype="bf16").run(states, o, lse)
    wanted = reference.attention(*(reference.from_bf16_bits(x) for x in (q, k, v)))
    reference.assert_close(reference.from_bf16_bits(o), wanted[0], 0.02)
    reference.assert_close(lse, wanted[1], 2e-3)


def test_what_is_refused(engine):
    o, lse = states_of(3)
    merge, out = engine.merge_states(head_dim=DIM, o_dtype="f32"), np.empty_like(o[0])
    pairs = list(zip(o, lse))
    for call, words in [
            (lambda: merge.run([], out), "was given 0 states"),
            (lambda: merge.run([pairs[0]] * 65, out), "was given 65 states"),
            (lambda: merge.run(o, out), "states is a ndarray; give a list of pairs"),
            (lambda: merge.run([pairs[0], o[1]], out), "states[1] is a ndarray; it must be a pair (o, lse)."),
            (lambda: merge.run([pairs[0], (o[1, :, :2], lse[1])], out), "states[1].o"),
            (lambda: merge.run([pairs[0], (o[1], lse[1].astype(np.float16))], out), "states[1].lse"),
            (lambda: merge.run([(o[0].astype(np.float16), lse[0])], out), "states[0].o"),
            (lambda: merge.run((o, lse[:2]), out), "3 states in o and 2 in lse"),
            (lambda: merge.run(pairs, out[:2]), "result.o"),
            (lambda: engine.merge_states(head_dim=30), "multiple of 8"),
            (lambda: engine.merge_states(head_dim=32, state_dtype="f64"), "dtype f64 is not one that states can have")]:
        with pytest.raises(heddle.InputError) as caught:
            call()
        assert words in str(caught.value), str(caught.value)
