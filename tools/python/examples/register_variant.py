#!/usr/bin/env python3
"""Registers a variant of its own, plans a batch of two requests and runs it. NumPy on the CPU device; on a GPU through
PyTorch.

    python3 tools/python/examples/register_variant.py
"""
import numpy as np

import heddle

GEMMA = {
    "name": "gemma",
    "params": {"cap": {"type": "f32", "default": 50.0, "min": 0},
               "window": {"type": "i32", "default": 4095, "min": 1}},
    "mask": {"causal": True, "window_left": "window"},
    "hooks": {"logits_transform": "return params.cap * tanh(logit / params.cap);"},
}


def lse_by_definition(q, k, cap, window):
    """Of one new token q [heads, dim] behind keys k [kv_len, kv_heads, dim]."""
    k = np.repeat(k[-window - 1:], len(q) // k.shape[1], 1).astype(np.float64)
    logits = np.einsum("hd,khd->hk", q, k) * q.shape[1] ** -0.5
    return np.log(np.exp(cap * np.tanh(logits / cap)).sum(1))


def main():
    engine = heddle.Engine()  # the GPU, or the CPU where there is none
    engine.register_variant(GEMMA)  # a dict, JSON text or the path of a JSON file
    attention = engine.attention(variant="gemma", num_qo_heads=8, num_kv_heads=2, head_dim=64, page_size=16,
                                 q_dtype="f16")  # compiled or found here, never in run()
    workspace = attention.workspace(max_requests=4, max_qo_rows=64, max_kv_tokens=1 << 16)
    print(engine.device, attention.kernels, f"workspace of {workspace.bytes} bytes", sep="\n")

    # Two requests, one new token each: the first has 40 keys in pages 5, 0 and 2, the second 7 in page 1.
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in ((2, 8, 64), (6, 16, 2, 64), (6, 16, 2, 64)))
    pages = np.array([5, 0, 2, 1], np.int32)
    place = fetch = lambda x: x  # noqa: E731
    if engine.device.kind == "cuda":
        import torch
        place, fetch = lambda x: torch.from_numpy(x).to("cuda"), lambda x: x.cpu().numpy()  # noqa: E731
    arrays = [place(x) for x in (q, k, v, np.empty_like(q))]
    lse, on_device = place(np.empty((2, 8), np.float32)), place(pages)

    for cap, window in ((50.0, 4095), (2.0, 20)):  # params change without a recompilation
        params = {"cap": cap, "window": window}
        print(attention.plan(workspace, [0, 1, 2], [0, 3, 4], [8, 7], params=params))  # once a step
        attention.run(workspace, *arrays, kv_indices=on_device, lse=lse, params=params)  # once a layer
        for row, keys in zip(range(2), (k[pages[:3]].reshape(48, 2, 64)[:40], k[pages[3]][:7])):
            error = np.abs(fetch(lse)[row] - lse_by_definition(q[row], keys, cap, window)).max()
            print(f"cap {cap}, window {window}, request {row}: lse to {error:.1e}")
            assert error < 5e-3


if __name__ == "__main__":
    main()
