"""What FlashInfer's wrappers are told beside masks: positions, scales, sinks, more tokens a request, graphs' masks."""
import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import heddle  # noqa: E402
import heddle.flashinfer as flashinfer  # noqa: E402
import reference  # noqa: E402
from test_flashinfer import BUFFER, DIM, HEADS, KV, KV_HEADS, LAST, PAGE, PAGES, QO, check, pool, tensor  # noqa: E402

LISTS = [torch.tensor(x) for x in (KV, PAGES, LAST)]
SIZES = HEADS, KV_HEADS, DIM, PAGE


def turned(x, begin, theta, factor):
    """x [rows, heads, dim] at positions from `begin` on, halves of a head paired."""
    x = np.asarray(x, np.float64)
    half = x.shape[-1] // 2
    angle = (begin + np.arange(len(x)))[:, None, None] * factor * theta ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def test_rotary_positions():
    """Each request's q and k are turned by hand, and then attended plainly."""
    q, (cache, keys_of) = tensor(24, HEADS, DIM), pool()
    for given, theta, factor in (({}, 1e4, 1.0), ({"rope_theta": 5e3, "rope_scale": 4.0}, 5e3, 0.25)):
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(BUFFER)
        wrapper.plan(torch.tensor(QO), *LISTS, *SIZES, causal=True, q_data_type=torch.bfloat16,
                     pos_encoding_mode="ROPE_LLAMA", **given)
        found = wrapper.run(q, cache, return_lse=True)
        for r in range(4):
            k, v = keys_of(r)
            rows = slice(QO[r], QO[r + 1])
            by_hand = turned(q[rows].float().numpy(), len(k) - (QO[r + 1] - QO[r]), theta, factor)
            wanted = reference.attention(by_hand, turned(k, 0, theta, factor), v, causal=True)
            reference.assert_close(found[0][rows].float(), wanted[0], 0.03)
            reference.assert_close(found[1][rows], wanted[1] * reference.LOG2_E, 0.03)


@pytest.mark.parametrize("cap", [None, 3.0])
def test_alibi_adds_a_slope_a_head(cap):
    """FlashInfer counts the rows of a request from 0, which shows in lse alone."""
    q, k, v = tensor(7, 6, DIM), tensor(50, 3, DIM, seed=2), tensor(50, 3, DIM, seed=3)
    slopes = np.array([2.0 ** (-8 * (h + 1) / 4) if h < 4 else 2.0 ** (-4 * (2 * (h - 4) + 1) / 4) for h in range(6)])
    f = [x.double().numpy() for x in (q, k, v)]
    logits = np.einsum("qhd,khd->hqk", f[0], np.repeat(f[1], 2, 1)) * DIM ** -0.5
    logits += slopes[:, None, None] * (np.arange(50) - np.arange(7)[:, None])
    logits = cap * np.tanh(logits / cap) if cap else logits
    weights = np.exp(logits)
    wanted = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), np.repeat(f[2], 2, 1))
    o, lse = flashinfer.single_prefill_with_kv_cache(q, k, v, pos_encoding_mode="ALIBI", logits_soft_cap=cap,
                                                     return_lse=True)
    reference.assert_close(o.float(), wanted, 0.02)
    reference.assert_close(lse, np.log2(weights.sum(-1)).T, 4e-3)


def test_scales_of_q_and_k_make_one_factor():
    q, (cache, keys_of) = tensor(4, HEADS, DIM), pool()
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(BUFFER)
    wrapper.plan(*LISTS, *SIZES, data_type="bfloat16", logits_soft_cap=4.0, sm_scale=0.3)
    for words, factor in (({}, 1.0), ({"q_scale": 2.0, "k_scale": torch.tensor([0.25])}, 0.5), ({"k_scale": 3}, 3.0)):
        wanted = reference.batch(q.float().numpy(), range(5), keys_of, cap=4.0, scale=0.3 * factor)
        check(wrapper.run(q, cache, return_lse=True, **words), wanted)
    with pytest.raises(heddle.InputError, match="k_scale has shape"):
        wrapper.run(q, cache, k_scale=torch.ones(KV_HEADS))


def test_several_new_tokens_a_request():
    q, (cache, keys_of) = tensor(12, HEADS, DIM), pool()
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(BUFFER)
    wrapper.plan(*LISTS, *SIZES, data_type="bfloat16", q_len_per_req=3)
    wanted = reference.batch(q.float().numpy(), range(0, 13, 3), keys_of, causal=True)
    check(wrapper.run(q, cache, return_lse=True), wanted)
    with pytest.raises(heddle.InputError, match="q_len_per_req is 2"):
        wrapper.run(q, cache, q_len_per_req=2)
    wrapper.plan = functools.partial(flashinfer.fast_decode_plan, wrapper)
    wrapper.plan(None, *LISTS[1:], *SIZES, data_type="bfloat16", global_override_indptr_cpu=LISTS[0])
    check(wrapper.run(q[:4], cache, return_lse=True), reference.batch(q.float().numpy(), range(5), keys_of))


@pytest.mark.parametrize("word", [{"fixed_split_size": 64}, {"disable_split_kv": True}], ids=str)
def test_no_other_request_changes_a_bit(word):
    q, (cache, _) = tensor(4, HEADS, DIM), pool()
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(BUFFER)
    wrapper.plan(*LISTS, *SIZES, data_type="bfloat16", **word)
    whole = wrapper.run(q, cache, return_lse=True)
    wrapper.plan(LISTS[0][:3], LISTS[1], LISTS[2][:2], *SIZES, data_type="bfloat16", **word)  # ids of more pages
    part = wrapper.run(q[:2], cache, return_lse=True)
    assert torch.equal(whole[0][:2], part[0]) and torch.equal(whole[1][:2], part[1])


def test_a_sink_behind_keys_and_values():
    q, (cache, keys_of) = tensor(24, HEADS, DIM), pool()
    sink = torch.tensor([0.5, -1, 2, 0])
    wrapper = flashinfer.BatchAttentionWithAttentionSinkWrapper(BUFFER, head_dim_qk=DIM, head_dim_vo=DIM)
    wrapper.plan(torch.tensor(QO), *LISTS, *SIZES, causal=True, q_data_type=torch.bfloat16)
    for scale in (DIM ** -0.5, 0.4):
        wanted = reference.batch(q.float().numpy(), QO, keys_of, causal=True, sinks=sink, scale=scale)
        check(wrapper.run(q, cache, sink, scale, return_lse=True), wanted)
    with pytest.raises(heddle.InputError, match="takes it behind"):
        wrapper.run(q, cache)
    jit_args = ("uri", *[torch.bfloat16] * 3, torch.int32, DIM, DIM, ["sink"], ["float"], ["sm_scale"], ["double"],
                "AttentionSink", flashinfer.attention_sink_decl["fa2"])
    ragged = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(BUFFER, jit_args=jit_args,
                                                             jit_kwargs={"use_sliding_window": False})
    k, v = tensor(50, KV_HEADS, DIM, seed=2), tensor(50, KV_HEADS, DIM, seed=3)
    ragged.plan(torch.tensor([0, 24]), torch.tensor([0, 50]), HEADS, KV_HEADS, DIM, q_data_type=torch.bfloat16)
    check(ragged.run(q, k, v, sink, DIM ** -0.5, return_lse=True),
          reference.attention(*[x.float().numpy() for x in (q, k, v)], sinks=sink))
    with pytest.raises(heddle.UnsupportedError, match="jit_args name a variant"):
        flashinfer.BatchPrefillWithRaggedKVCacheWrapper(BUFFER, jit_args=(*jit_args[:12], "struct AttentionSink {};"))


def test_masks_in_the_buffers_of_a_graph():
    ints = lambda n: torch.zeros(n, dtype=torch.int32)  # noqa: E731
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
        BUFFER, "NHD", True, ints(5), ints(5), ints(16), ints(4), torch.zeros(4096, dtype=torch.uint8), ints(5))
    q, (cache, keys_of) = tensor(24, HEADS, DIM), pool()
    rng = np.random.default_rng(4)
    for n in (4, 2, 4):
        masks = [rng.random((QO[r + 1] - QO[r], len(keys_of(r)[0]))) < 0.6 for r in range(n)]
        wrapper.plan(torch.tensor(QO[:n + 1]), LISTS[0][:n + 1], LISTS[1][:KV[n]], LISTS[2][:n], *SIZES,
                     q_data_type=torch.bfloat16, custom_mask=torch.from_numpy(np.concatenate([m.ravel() for m in masks])))
        wanted = reference.batch(q.float().numpy(), QO[:n + 1], keys_of, mask=lambda r: masks[r])
        check(wrapper.run(q[:QO[n]], cache, return_lse=True), wanted)


def test_several_items_behind_a_prefix():
    """Places 0 lie between items. The second request's last rows alone are new; its prefix is longer."""
    places = [[0, 1, 2, 3, 0, 1, 2, 0], [0, 1, 0, 1, 2, 0]]
    prefix, rows = [4, 7], [12, 5]
    kv = [p + len(of) for p, of in zip(prefix, places)]
    qo_indptr, kv_indptr = [0, 12, 17], [0, kv[0], sum(kv)]
    q, k, v = tensor(17, HEADS, DIM), tensor(sum(kv), KV_HEADS, DIM, seed=2), tensor(sum(kv), KV_HEADS, DIM, seed=3)

    def mask(r):
        kept = np.tril(np.ones((kv[r], kv[r]), bool))
        for i, place in enumerate(places[r]):
            at = prefix[r] + i
            kept[at, prefix[r]:at + 1 - place] = False
        return kept[-rows[r]:]
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(BUFFER)
    plan = lambda **more: wrapper.plan(  # noqa: E731
        torch.tensor(qo_indptr), torch.tensor(kv_indptr), HEADS, KV_HEADS, DIM, causal=True, token_pos_in_items_len=8,
        q_data_type=torch.bfloat16, prefix_len_ptr=torch.tensor(prefix, dtype=torch.uint32), **more)
    plan(token_pos_in_items_ptr=torch.tensor([*places[0], *places[1], 0, 0], dtype=torch.uint16),
         max_item_len_ptr=torch.tensor([3, 2], dtype=torch.uint16))
    f = [x.float().numpy() for x in (q, k, v)]
    keys_of = lambda r: (f[1][kv_indptr[r]:kv_indptr[r + 1]], f[2][kv_indptr[r]:kv_indptr[r + 1]])  # noqa: E731
    check(wrapper.run(q, k, v, return_lse=True), reference.batch(f[0], qo_indptr, keys_of, mask=mask))
    with pytest.raises(heddle.InputError, match="token_pos_in_items_len, for 2 requests"):
        plan()
    with pytest.raises(heddle.InputError, match=r"\[8, 6\] keys behind their prefixes; .* is 8, and .* has 13 entries"):
        plan(token_pos_in_items_ptr=torch.tensor([*places[0], *places[1][:5]], dtype=torch.uint16))
    wrapper.plan(torch.tensor([0, 12]), torch.tensor([0, 12]), HEADS, KV_HEADS, DIM, q_data_type=torch.bfloat16,
                 prefix_len_ptr=torch.tensor(4), token_pos_in_items_len=8, token_pos_in_items_ptr=torch.tensor(places[0]))
    wanted = reference.attention(f[0][:12], f[1][:12], f[2][:12], mask=mask(0))
    check(wrapper.run(q[:12], k[:12], v[:12], return_lse=True), wanted)


def test_packing_bits():
    x = torch.rand(45, generator=torch.Generator().manual_seed(3)) < 0.5
    for order in ("big", "little"):
        assert flashinfer.packbits(x, order).tolist() == np.packbits(x.numpy(), bitorder=order).tolist()
    bits, begin = flashinfer.segment_packbits(x, torch.tensor([0, 3, 3, 45]), "little")
    assert begin.tolist() == [0, 1, 1, 7]
    assert bits.tolist() == [*np.packbits(x[:3].numpy(), bitorder="little"), *np.packbits(x[3:].numpy(), bitorder="little")]


def test_batch_attention():
    q, (cache, keys_of) = tensor(24, HEADS, DIM), pool()
    wrapper = flashinfer.BatchAttention(device="cpu")
    kv_lens = flashinfer.get_seq_lens(LISTS[0], LISTS[2], PAGE)
    wrapper.plan(torch.tensor(QO), *LISTS[:2], kv_lens, HEADS, KV_HEADS, DIM, DIM, PAGE, causal=True,
                 logits_soft_cap=5.0)
    wanted = reference.batch(q.float().numpy(), QO, keys_of, causal=True, cap=5.0)
    check(wrapper.run(q, cache, logits_soft_cap=5.0), wanted)
    o, _ = wrapper.run(q, cache, v_scale=2.0)
    reference.assert_close(o.float(), 2 * wanted[0], 0.04)
    with pytest.raises(heddle.UnsupportedError, match="logits_soft_cap=7.0"):
        wrapper.run(q, cache, logits_soft_cap=7.0)


def test_prefill_and_decode_from_one_call():
    q, (cache, keys_of) = tensor(24, HEADS, DIM), pool()
    k, v = tensor(40, KV_HEADS, DIM, seed=2), tensor(40, KV_HEADS, DIM, seed=3)
    f = [x.float().numpy() for x in (q, k, v)]
    pod = flashinfer.PODWithPagedKVCacheWrapper(BUFFER)
    pod.plan(*LISTS, *SIZES, data_type="bfloat16", window_left=9)
    prefill, decode = pod.run(q, k, v, q[:4], cache, causal_p=True, return_lse_p=True, return_lse_d=True)
    check(prefill, reference.attention(*f, causal=True))
    check(decode, reference.batch(f[0], range(5), keys_of, window_left=9))
    with pytest.raises(heddle.UnsupportedError, match="causal_d=True"):
        pod.run(q, k, v, q[:4], cache, causal_d=True)
    both = flashinfer.BatchPODWithPagedKVCacheWrapper(BUFFER)
    both.plan(torch.tensor(QO), *LISTS, torch.arange(5), *LISTS, *SIZES, data_type="bfloat16")
    for causal in (True, False):
        o, lse = both.run(q, cache, q[:4], cache, causal_p=causal, return_lse=True)
        check((o[0], lse[0]), reference.batch(f[0], QO, keys_of, causal=causal))
        check((o[1], lse[1]), reference.batch(f[0], range(5), keys_of))


def test_names_lie_where_flashinfer_has_them():
    from heddle.flashinfer import attention, cascade, decode, page, pod, prefill, quantization, sparse
    rooms = attention, cascade, decode, page, pod, prefill, quantization, sparse
    for name in flashinfer.__all__:
        assert name == "attention_sink_decl" or any(hasattr(room, name) for room in rooms), name
    with pytest.raises(AttributeError, match="no 'BatchMLAPagedAttentionWrapper': .* not MLA"):
        flashinfer.BatchMLAPagedAttentionWrapper
