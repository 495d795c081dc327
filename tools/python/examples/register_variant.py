#!/usr/bin/env python3
"""Registers a variant of its own, plans a batch of two requests and runs it; NumPy on the CPU device.

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


def bf16(x):
    """NumPy has no bfloat16: its bits as uint16, cut."""
    return (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def main():
    engine = heddle.Engine("cpu")  # heddle.Engine() takes the GPU, if there is one
    engine.register_variant(GEMMA)
    attention = engine.attention(variant="gemma", num_qo_heads=8, num_kv_heads=2, head_dim=64, page_size=16)
    workspace = attention.workspace(max_requests=4, max_qo_rows=64, max_kv_tokens=1 << 16)
    print(engine.device, attention.kernels, f"workspace of {workspace.bytes} bytes", sep="\n")

    # Two requests, one new token each: the first has 40 keys in pages 5, 0 and 2, the second 7 in page 1.
    rng = np.random.default_rng(0)
    q, k, v = (bf16(rng.standard_normal(shape)) for shape in ((2, 8, 64), (6, 16, 2, 64), (6, 16, 2, 64)))
    o, lse = np.empty_like(q), np.empty((2, 8), np.float32)
    pages = np.array([5, 0, 2, 1], np.int32)
    print(attention.plan(workspace, [0, 1, 2], [0, 3, 4], [8, 7]))
    for cap in (50.0, 2.0):  # params change without a recompilation
        attention.run(workspace, q, k, v, o, kv_indices=pages, lse=lse, params={"cap": cap})
        print(f"cap {cap}: lse of the first head {lse[:, 0]}")


if __name__ == "__main__":
    main()
