"""Block-sparse and cascade attention against dense attention with the mask, on the CPU device."""
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import heddle  # noqa: E402
import heddle.flashinfer as flashinfer  # noqa: E402
import reference  # noqa: E402
from test_flashinfer import BUFFER, DIM, HEADS, KV_HEADS, check, tensor  # noqa: E402


def blocks_of(rng, rows, columns, density=0.4):
    """bool [rows, columns] with a row of none and a row of all."""
    chosen = rng.random((rows, columns)) < density
    chosen[1 % rows], chosen[0] = False, True
    return chosen


@pytest.mark.parametrize("R, C, M, N", [(1, 1, 9, 40), (4, 16, 10, 64), (16, 3, 48, 33), (5, 8, 20, 40)])
@pytest.mark.parametrize("inside", ["", "mask", "packed_mask"])
def test_blocks_against_a_dense_mask(R, C, M, N, inside):
    rng = np.random.default_rng(R + C)
    chosen = blocks_of(rng, -(-M // R), N // C)
    indptr, indices = np.concatenate([[0], chosen.sum(1).cumsum()]), chosen.nonzero()[1]
    within = rng.random((len(indices), R, C)) < (0.5 if inside else 1)
    dense = np.zeros((len(chosen) * R, N), bool)
    for row in range(len(chosen)):
        for b in range(indptr[row], indptr[row + 1]):
            dense[row * R:(row + 1) * R, indices[b] * C:(indices[b] + 1) * C] = within[b]
    rows = [within[indptr[i]:indptr[i + 1], :M - i * R].transpose(1, 0, 2).ravel() for i in range(len(chosen))]
    packed = np.concatenate([np.packbits(row, bitorder="little") for row in rows])
    given = {"mask": torch.from_numpy(within), "packed_mask": torch.from_numpy(packed)}
    q, k, v = tensor(M, HEADS, DIM), tensor(N, KV_HEADS, DIM, seed=2), tensor(N, KV_HEADS, DIM, seed=3)
    wrapper = flashinfer.BlockSparseAttentionWrapper(BUFFER)
    wrapper.plan(torch.from_numpy(indptr), torch.from_numpy(indices), M, N, R, C, HEADS, KV_HEADS, DIM,
                 q_data_type=torch.bfloat16, **({inside: given[inside]} if inside else {}))
    wanted = reference.attention(*[x.float().numpy() for x in (q, k, v)], mask=dense[:M])
    check(wrapper.run(q, k, v, return_lse=True), wanted)
    assert (dense[:M].sum(1) == 0).any()  # a row of blocks that sees nothing gives 0 and -inf
    both = torch.stack([k, v], 1)  # rows of K and V in turn: read where they lie
    out = torch.empty_like(q)
    assert wrapper.run(q, both[:, 0], both[:, 1], out=out) is out
    assert torch.equal(out, wrapper.run(q, k, v))


def sizes_summing(rng, count, total, step):
    cuts = np.sort(rng.choice(np.arange(1, total // step), count - 1, replace=False)) * step
    return np.diff([0, *cuts, total])


@pytest.mark.parametrize("step", [1, 8])
@pytest.mark.parametrize("heads, kv_heads", [(2, 2), (4, 2), (6, 1)])
def test_blocks_of_any_size_for_each_head(step, heads, kv_heads):
    rng = np.random.default_rng(heads + step)
    rows = np.stack([sizes_summing(rng, 5, 30, 1) for _ in range(kv_heads)])
    columns = np.stack([sizes_summing(rng, 6, 96, step) for _ in range(kv_heads)])
    chosen = np.stack([blocks_of(rng, 5, 6) for _ in range(kv_heads)])
    q, k, v = tensor(heads, 30, DIM), tensor(kv_heads, 96, DIM, seed=2), tensor(kv_heads, 96, DIM, seed=3)
    wrapper = flashinfer.VariableBlockSparseAttentionWrapper(BUFFER)
    wrapper.plan(torch.from_numpy(chosen), torch.from_numpy(rows), torch.from_numpy(columns), heads, kv_heads, DIM,
                 logits_soft_cap=6.0, q_data_type=torch.bfloat16)
    o, lse = wrapper.run(q, k, v, return_lse=True)
    assert o.shape == q.shape and lse.shape == (heads, 30)
    group = heads // kv_heads
    for h in range(kv_heads):
        of = slice(h * group, (h + 1) * group)
        dense = np.repeat(np.repeat(chosen[h], rows[h], 0), columns[h], 1)
        f = [x.transpose(0, 1).float().numpy() for x in (q[of], k[h:h + 1], v[h:h + 1])]
        check((o[of].transpose(0, 1), lse[of].T), reference.attention(*f, mask=dense, cap=6.0))
    out = torch.empty_like(q)
    assert wrapper.run(q, k, v, out=out) is out and torch.equal(out, o)


def test_what_blocks_cannot_have_is_refused_by_a_sentence():
    blocks = flashinfer.BlockSparseAttentionWrapper(BUFFER)
    plan = lambda indices=(0, 1), n=8, **more: blocks.plan(  # noqa: E731
        torch.tensor([0, 1, 2]), torch.tensor(indices), 4, n, 2, 4, HEADS, KV_HEADS, DIM, **more)
    variable = flashinfer.VariableBlockSparseAttentionWrapper(BUFFER)
    ones = torch.ones(KV_HEADS, 2, dtype=torch.int32)
    with pytest.raises(heddle.InputError, match="before plan"):
        blocks.run(None, None, None)
    with pytest.raises(heddle.UnsupportedError, match="causal=True is not supported with block-sparse .* position"):
        plan(causal=True)
    with pytest.raises(heddle.UnsupportedError, match="pos_encoding_mode='ROPE_LLAMA' is not supported with block-sp"):
        variable.plan(torch.ones(KV_HEADS, 2, 2), ones, ones, HEADS, KV_HEADS, DIM, pos_encoding_mode="ROPE_LLAMA")
    with pytest.raises(heddle.InputError, match="from 0 to 1"):
        plan(indices=(0, 2))
    with pytest.raises(heddle.InputError, match="C must divide N"):
        plan(n=9)
    with pytest.raises(heddle.InputError, match=r"it must be \(2, 2, 4\)"):
        plan(mask=torch.ones(2, 4, 2))
    with pytest.raises(heddle.InputError, match="every head must have the same length"):
        variable.plan(torch.ones(KV_HEADS, 2, 2), ones + torch.tensor([[0], [1]]), ones, HEADS, KV_HEADS, DIM)
    plan(q_data_type="bfloat16")
    q, k = tensor(4, HEADS, DIM), tensor(9, KV_HEADS, DIM)
    with pytest.raises(heddle.InputError, match="9 and 9 keys; plan\\(\\) was told N=8"):
        blocks.run(q, k, k)


# Two levels: 4 requests of 5 rows share 3 pages, and each has own keys of 2 pages.
PAGE, SHARED, OWN, ROWS = 8, 24, 13, 5


def levels():
    cache = tensor(11, 2, PAGE, KV_HEADS, DIM, seed=5)
    rows = torch.arange(5, dtype=torch.int32)
    lists = ([torch.tensor([0, 20]), rows * ROWS], [torch.tensor([0, 3]), rows * 2],
             [torch.tensor([4, 0, 9]), torch.tensor([1, 2, 3, 5, 6, 7, 8, 10])], [torch.tensor([PAGE]), torch.full((4,), 5)])
    flat = [cache[:, i].float().numpy() for i in (0, 1)]

    def keys_of(r):
        ids = [*lists[2][0].tolist(), *lists[2][1][2 * r:2 * r + 2].tolist()]
        return tuple(x[ids].reshape(-1, KV_HEADS, DIM)[:SHARED + OWN] for x in flat)
    return tensor(20, HEADS, DIM), cache, lists, keys_of


@pytest.mark.parametrize("causal", [False, True])
def test_levels_meet_in_one_state(causal):
    q, cache, lists, keys_of = levels()
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, BUFFER)
    wrapper.plan(*lists, HEADS, KV_HEADS, DIM, PAGE, causal=causal, q_data_type=torch.bfloat16)
    wanted = reference.batch(q.float().numpy(), range(0, 21, ROWS), keys_of, causal=causal)[0]
    reference.assert_close(wrapper.run(q, cache).float(), wanted, 0.02)
    shared = [cache[lists[2][0], i].reshape(SHARED, KV_HEADS, DIM) for i in (0, 1)]
    prefill = flashinfer.BatchPrefillWithSharedPrefixPagedKVCacheWrapper(BUFFER)
    prefill.begin_forward(*[given[1] for given in lists], HEADS, KV_HEADS, DIM, PAGE)
    reference.assert_close(prefill.forward(q, *shared, cache, causal=causal).float(), wanted, 0.02)
    decode = flashinfer.BatchDecodeWithSharedPrefixPagedKVCacheWrapper(BUFFER)
    decode.begin_forward(*[given[1] for given in lists[1:]], HEADS, KV_HEADS, DIM, PAGE, data_type="bfloat16")
    last = q[ROWS - 1::ROWS].contiguous()
    wanted = reference.batch(last.float().numpy(), range(5), keys_of)[0]
    reference.assert_close(decode.forward(last, *shared, cache).float(), wanted, 0.02)


def test_levels_that_do_not_fit_are_refused():
    _, _, lists, _ = levels()
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(3, BUFFER)
    with pytest.raises(heddle.InputError, match="this wrapper has 3"):
        wrapper.plan(*lists, HEADS, KV_HEADS, DIM, PAGE)
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, BUFFER)
    with pytest.raises(heddle.UnsupportedError, match="window_left=9 is not supported with levels"):
        wrapper.plan(*lists, HEADS, KV_HEADS, DIM, PAGE, window_left=9)
    with pytest.raises(heddle.InputError, match="for each of the 2 levels"):
        flashinfer.MultiLevelCascadeAttentionWrapper(2, BUFFER, use_cuda_graph=True)
