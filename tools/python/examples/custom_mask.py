#!/usr/bin/env python3
"""A mask of one bit for each query row and key, with the built-in variant custom_mask: a tree of six draft tokens behind
40 keys, and beside it a plain causal request. NumPy on the CPU device; on a GPU through PyTorch.

Give a mask like this only where no declared one will do (see "mask" in register_variant.py): a declared mask skips the
tiles that nobody sees, this one is read for all of them.

    python3 tools/python/examples/custom_mask.py
"""
import numpy as np

import heddle

HEADS, KV_HEADS, DIM, PAGE = 8, 2, 64, 16
PARENT = [-1, 0, 0, 1, 1, 2]  # of each draft token; it sees its ancestors, itself and the 40 keys before


def draft_tree():
    """[draft tokens, 40 + draft tokens]"""
    seen = np.zeros((len(PARENT), 40 + len(PARENT)), bool)
    seen[:, :40] = True
    for token in range(len(PARENT)):
        ancestor = token
        while ancestor >= 0:
            seen[token, 40 + ancestor] = True
            ancestor = PARENT[ancestor]
    return seen


def causal(qo_len, kv_len):
    return np.arange(kv_len) <= kv_len - qo_len + np.arange(qo_len)[:, None]


def attention_by_definition(q, k, v, seen):
    k, v = (np.repeat(x, HEADS // KV_HEADS, 1).astype(np.float64) for x in (k, v))
    logits = np.where(seen, np.einsum("qhd,khd->hqk", q, k) * DIM ** -0.5, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)


def main():
    engine = heddle.Engine()
    if engine.device.kind == "cuda":
        import torch
        place = lambda x: torch.from_numpy(x).to("cuda")  # noqa: E731
        fetch = lambda x: x.cpu().numpy()  # noqa: E731
    else:
        place = fetch = lambda x: x  # noqa: E731
    attention = engine.attention(variant="custom_mask", q_dtype="f16", num_qo_heads=HEADS, num_kv_heads=KV_HEADS,
                                 head_dim=DIM, page_size=PAGE)
    workspace = attention.workspace(max_requests=4, max_qo_rows=64, max_kv_tokens=1 << 12)

    masks = [draft_tree(), causal(3, 20)]
    qo_lens, kv_lens = zip(*(mask.shape for mask in masks))
    # One row of bits a query row, as long as the longest request needs; what lies behind a request's own keys is not read.
    bits = np.zeros((sum(qo_lens), max(kv_lens)), bool)
    for mask, begin in zip(masks, (0, qo_lens[0])):
        bits[begin:begin + len(mask), :mask.shape[1]] = mask
    bits = np.packbits(bits, axis=1, bitorder="little")

    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in
               ((sum(qo_lens), HEADS, DIM), (5, PAGE, KV_HEADS, DIM), (5, PAGE, KV_HEADS, DIM)))
    pages = np.array([3, 0, 4, 2, 1], np.int32)  # three of the first request, two of the second
    o = place(np.empty_like(q))
    attention.plan(workspace, [0, qo_lens[0], sum(qo_lens)], [0, 3, 5], [46 - 2 * PAGE, 20 - PAGE])
    attention.run(workspace, place(q), place(k), place(v), o, kv_indices=place(pages), tensors={"bits": place(bits)})

    o = fetch(o)
    for r, (mask, ids) in enumerate(zip(masks, (pages[:3], pages[3:]))):
        rows = slice(0, 6) if r == 0 else slice(6, 9)
        own_k, own_v = (x[ids].reshape(-1, KV_HEADS, DIM)[:kv_lens[r]] for x in (k, v))
        error = np.abs(o[rows] - attention_by_definition(q[rows], own_k, own_v, mask)).max()
        print(f"request {r} on {engine.device.name}: {qo_lens[r]} rows over {kv_lens[r]} keys, error {error:.1e}")
        assert error < 5e-3


if __name__ == "__main__":
    main()
