"""heddle.flashinfer on the CPU device against the plain definition. Needs PyTorch (of any build)."""
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import heddle  # noqa: E402
import heddle.flashinfer as flashinfer  # noqa: E402
import reference  # noqa: E402

QO, KV, LAST, PAGES = [0, 1, 4, 4, 24], [0, 3, 5, 6, 8], [8, 7, 3, 16], [5, 0, 2, 1, 7, 3, 6, 4]
HEADS, KV_HEADS, DIM, PAGE = 4, 2, 32, 16
BUFFER = torch.empty(1, dtype=torch.uint8)


def tensor(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def check(found, wanted):
    reference.assert_close(found[0].float(), wanted[0], 0.02)
    reference.assert_close(found[1], wanted[1] * reference.LOG2_E, 4e-3)


def pool(layout="NHD"):
    k, v = tensor(8, PAGE, KV_HEADS, DIM, seed=2), tensor(8, PAGE, KV_HEADS, DIM, seed=3)
    keys_of = reference.paged(k.float().numpy(), v.float().numpy(), KV, LAST, np.array(PAGES))
    if layout == "HND":
        k, v = (x.transpose(1, 2).contiguous() for x in (k, v))
    return (k, v), keys_of


CASES = [{}, {"causal": True}, {"causal": True, "window_left": 9}, {"logits_soft_cap": 3.0},
         {"causal": True, "window_left": 5, "logits_soft_cap": 5.0, "sm_scale": 0.3}]


def words(case):
    return {{"logits_soft_cap": "cap", "sm_scale": "scale"}.get(k, k): v for k, v in case.items()}


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_prefill_over_pages(case, layout):
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(BUFFER, layout)
    cache, keys_of = pool(layout)
    q = tensor(24, HEADS, DIM)
    wrapper.plan(torch.tensor(QO), torch.tensor(KV), torch.tensor(PAGES), torch.tensor(LAST), HEADS, KV_HEADS, DIM,
                 PAGE, q_data_type=torch.bfloat16, **case)
    check(wrapper.run(q, cache, return_lse=True), reference.batch(q.float().numpy(), QO, keys_of, **words(case)))
    if layout == "NHD":
        both = torch.stack(cache, 1)
        out = torch.empty_like(q)
        assert wrapper.run(q, both, out=out, v_scale=2.0) is out
        assert torch.equal(out, 2 * wrapper.run(q, cache))


def test_decode_over_pages_with_sinks_and_empty_requests():
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(BUFFER)
    cache, keys_of = pool()
    q, sinks = tensor(4, HEADS, DIM), torch.tensor([0.5, -1, 2, 0])
    for case in ({}, {"window_left": 6}, {"logits_soft_cap": 4.0}):
        wrapper.plan(torch.tensor(KV), torch.tensor(PAGES), torch.tensor(LAST), HEADS, KV_HEADS, DIM, PAGE,
                     data_type="bfloat16", **case)
        for given in (None, sinks):
            wanted = reference.batch(q.float().numpy(), range(5), keys_of, sinks=given, **words(case))
            check(wrapper.run(q, cache, return_lse=True, sinks=given), wanted)
    # FlashInfer takes any last_page_len where there is no page.
    wrapper.plan(torch.tensor([0, 3, 3]), torch.tensor(PAGES[:3]), torch.tensor([8, 1]), HEADS, KV_HEADS, DIM, PAGE,
                 data_type="bfloat16")
    o, lse = wrapper.run_return_lse(q[:2], cache)
    assert (o[1] == 0).all() and torch.isneginf(lse[1]).all()


def test_decode_with_the_buffers_of_a_graph():
    pages = torch.zeros(16, dtype=torch.int32)
    wrapper = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(
        BUFFER, torch.zeros(5, dtype=torch.int32), pages, torch.zeros(4, dtype=torch.int32))
    cache, keys_of = pool()
    q = tensor(4, HEADS, DIM)
    plan = lambda n, **more: wrapper.plan(torch.tensor(KV[:n + 1]), torch.tensor(PAGES[:KV[n]]),  # noqa: E731
                                          torch.tensor(LAST[:n]), HEADS, KV_HEADS, DIM, PAGE, data_type="bfloat16",
                                          **more)
    for n in (2, 4, 1):
        plan(n)
        check(wrapper.run(q[:n], cache, return_lse=True), reference.batch(q.float().numpy(), range(n + 1), keys_of))
    with pytest.raises(heddle.InputError, match="another window"):
        plan(2, window_left=3)


def test_prefill_over_ragged_keys_and_masks():
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(BUFFER)
    qo, kv = [0, 3, 20, 21], [0, 11, 40, 45]
    q, k, v = tensor(21, HEADS, DIM), tensor(45, KV_HEADS, DIM, seed=2), tensor(45, KV_HEADS, DIM, seed=3)
    f = [x.float().numpy() for x in (q, k, v)]
    keys_of = lambda r: (f[1][kv[r]:kv[r + 1]], f[2][kv[r]:kv[r + 1]])  # noqa: E731
    for case in CASES:
        wrapper.plan(torch.tensor(qo), torch.tensor(kv), HEADS, KV_HEADS, DIM, q_data_type=torch.bfloat16, **case)
        check(wrapper.run(q, k, v, return_lse=True), reference.batch(f[0], qo, keys_of, **words(case)))
    rng = np.random.default_rng(4)
    masks = [rng.random((qo[r + 1] - qo[r], kv[r + 1] - kv[r])) < 0.6 for r in range(3)]
    masks[1][2] = False  # a row that sees no key
    flat = torch.from_numpy(np.concatenate([m.ravel() for m in masks]))
    packed = torch.from_numpy(np.concatenate([np.packbits(m.ravel(), bitorder="little") for m in masks]))
    for given in ({"custom_mask": flat}, {"packed_custom_mask": packed}):
        wrapper.plan(torch.tensor(qo), torch.tensor(kv), HEADS, KV_HEADS, DIM, q_data_type=torch.bfloat16, **given)
        wanted = reference.batch(f[0], qo, keys_of, mask=lambda r: masks[r])
        check(wrapper.run(q, k, v, return_lse=True), wanted)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_single_requests(layout):
    q, k, v = tensor(7, HEADS, DIM), tensor(50, KV_HEADS, DIM, seed=2), tensor(50, KV_HEADS, DIM, seed=3)
    f = [x.float().numpy() for x in (q, k, v)]
    kv = [x.transpose(0, 1).contiguous() if layout == "HND" else x for x in (k, v)]
    o, lse = flashinfer.single_decode_with_kv_cache(q[0], *kv, kv_layout=layout, return_lse=True)
    check((o[None], lse[None]), reference.attention(f[0][:1], *f[1:]))
    for case in CASES:
        found = flashinfer.single_prefill_with_kv_cache(q, *kv, kv_layout=layout, return_lse=True, **case)
        check(found, reference.attention(*f, **words(case)))
    mask = torch.rand(7, 50, generator=torch.Generator().manual_seed(5)) < 0.5
    found = flashinfer.single_prefill_with_kv_cache_return_lse(q, *kv, kv_layout=layout, custom_mask=mask)
    check(found, reference.attention(*f, mask=mask.numpy()))
    assert torch.equal(flashinfer.single_prefill_with_kv_cache(q, *kv, kv_layout=layout), flashinfer.
                       single_prefill_with_kv_cache(q, *kv, kv_layout=layout))


def test_merging_states():
    q, k, v = tensor(7, HEADS, DIM), tensor(50, KV_HEADS, DIM, seed=2), tensor(50, KV_HEADS, DIM, seed=3)
    part = lambda a, b: flashinfer.single_prefill_with_kv_cache(q, k[a:b], v[a:b], return_lse=True)  # noqa: E731
    whole, (va, sa), (vb, sb) = part(0, 50), part(0, 20), part(20, 50)
    merged = flashinfer.merge_state(va, sa, vb, sb)
    reference.assert_close(merged[0].float(), whole[0].float(), 0.02)
    reference.assert_close(merged[1], whole[1], 1e-3)
    nothing = torch.full_like(va, torch.nan), torch.full_like(sa, -torch.inf)
    same = flashinfer.merge_state(va, sa, *nothing)
    assert torch.equal(same[0], va) and torch.allclose(same[1], sa)
    empty = flashinfer.merge_state(*nothing, *nothing)
    assert (empty[0] == 0).all() and torch.isneginf(empty[1]).all()
    rows = torch.arange(7) < 3
    flashinfer.merge_state_in_place(va, sa, vb, sb, mask=rows)
    assert torch.equal(va[:3], merged[0][:3]) and not torch.equal(va[3:], merged[0][3:])


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_appending_to_pages(layout):
    shape = (8, PAGE, KV_HEADS, DIM) if layout == "NHD" else (8, KV_HEADS, PAGE, DIM)
    cache = torch.zeros(8, 2, *shape[1:], dtype=torch.bfloat16)
    kv, last, pages = (torch.tensor(x, dtype=torch.int32) for x in (KV, LAST, PAGES))
    lengths = flashinfer.get_seq_lens(kv, last, PAGE)
    assert lengths.tolist() == [40, 23, 3, 32]
    new = torch.tensor([0, 1, 4, 4, 24], dtype=torch.int32)
    request, position = flashinfer.get_batch_indices_positions(new, lengths, 24)
    assert request.tolist() == [0] + [1] * 3 + [3] * 20 and position[:4].tolist() == [39, 20, 21, 22]
    k, v = tensor(24, KV_HEADS, DIM), tensor(24, KV_HEADS, DIM, seed=1)
    flashinfer.append_paged_kv_cache(k, v, request, position, cache, pages, kv, last, layout)
    for i in (0, 1, 3, 4, 23):
        page, slot = PAGES[KV[request[i]] + position[i] // PAGE], position[i] % PAGE
        at = cache[page, :, slot] if layout == "NHD" else cache[page, :, :, slot]
        assert torch.equal(at[0], k[i]) and torch.equal(at[1], v[i])


def test_what_is_not_supported_is_refused_by_name():
    decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(BUFFER)
    prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(BUFFER)
    lists = torch.tensor(KV), torch.tensor(PAGES), torch.tensor(LAST)
    sizes = HEADS, KV_HEADS, DIM, PAGE
    cache, _ = pool()
    q = tensor(4, HEADS, DIM)
    decode.plan(*lists, *sizes, data_type="bfloat16")
    refused = [
        (lambda: decode.plan(*lists, *sizes, pos_encoding_mode="ROPE_GPTJ"), "pos_encoding_mode='ROPE_GPTJ'"),
        (lambda: decode.plan(*lists, *sizes, rope_theta=1e4), "rope_theta=10000.0"),
        (lambda: decode.plan(*lists, *sizes, q_data_type="bfloat16", o_data_type="float32"), "o_data_type='float32'"),
        (lambda: flashinfer.BatchPrefillWithPagedKVCacheWrapper(BUFFER, jit_args=["uri"]), "jit_args name a variant"),
        (lambda: decode.run(q, cache, window_left=7), "window_left=7"),
        (lambda: decode.run(q, cache, kv_cache_sf=q), "kv_cache_sf=tensor"),
        (lambda: prefill.plan(torch.tensor(QO), *lists, *sizes, use_fp16_qk_reduction=True), "use_fp16_qk_reduction"),
        (lambda: prefill.plan(torch.tensor(QO), *lists, *sizes, head_dim_vo=64), "head_dim_vo=64"),
        (lambda: prefill.plan(torch.tensor(QO), *lists, *sizes, block_tables=q), "block_tables=tensor"),
        (lambda: flashinfer.BatchDecodeWithPagedKVCacheWrapper(BUFFER, backend="trtllm-gen"), "backend='trtllm-gen'"),
        (lambda: flashinfer.BatchPrefillWithRaggedKVCacheWrapper(BUFFER, "HND"), "kv_layout='HND'"),
    ]
    for call, named in refused:
        with pytest.raises(NotImplementedError) as caught:
            call()
        assert named in str(caught.value), str(caught.value)
    with pytest.raises(heddle.InputError, match="all three or none"):
        flashinfer.BatchDecodeWithPagedKVCacheWrapper(BUFFER, use_cuda_graph=True)
    with pytest.raises(TypeError, match="colour"):
        prefill.plan(torch.tensor(QO), *lists, *sizes, colour=3)
