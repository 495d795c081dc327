#!/usr/bin/env python3
"""Requests behind one system prompt: plan() is given the page ids too, finds the prefix that neighbouring requests have
in common and has its keys read once for all of them, where the cost model says that this is faster. PyTorch.

The page ids alone decide: nothing is declared, and a batch without common pages is planned as ever. On a GPU one graph,
captured once, serves plans with and without sharing; the CPU device has no graphs and runs directly.

    python3 tools/python/examples/shared_prefix.py
"""
import torch

import heddle

HEADS, KV_HEADS, DIM, PAGE, REQUESTS, OWN_PAGES = 8, 2, 64, 16, 16, 3


def batch(prefix_pages):
    """kv_indptr, last_page_len, page ids: the prefix's pages, then each request's own."""
    pages, kv_indptr = [], [0]
    for r in range(REQUESTS):
        own = prefix_pages + OWN_PAGES * r
        pages += [*range(prefix_pages), *range(own, own + OWN_PAGES)]
        kv_indptr.append(len(pages))
    return kv_indptr, [1 + r % PAGE for r in range(REQUESTS)], torch.tensor(pages, dtype=torch.int32)


def milliseconds(run):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(20):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 20


def main():
    torch.manual_seed(0)
    engine = heddle.Engine("auto" if torch.cuda.is_available() else "cpu")
    device, on_gpu = engine.device.kind, engine.device.kind == "cuda"
    prefix_pages = 1024 if on_gpu else 32
    attention = engine.attention(variant="causal", num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM,
                                 page_size=PAGE, share_prefixes=True)
    workspace = attention.workspace(max_requests=REQUESTS, max_qo_rows=REQUESTS,
                                    max_kv_tokens=REQUESTS * (prefix_pages + OWN_PAGES) * PAGE)
    kv_indptr, last_page_len, page_ids = batch(prefix_pages)
    num_pages = prefix_pages + OWN_PAGES * REQUESTS
    k, v = (torch.randn(num_pages, PAGE, KV_HEADS, DIM, device=device).to(torch.bfloat16) for _ in range(2))
    q = torch.randn(REQUESTS, HEADS, DIM, device=device).to(torch.bfloat16)
    o, pages = torch.empty_like(q), page_ids.to(device)

    def plan(**words):
        return attention.plan(workspace, list(range(REQUESTS + 1)), kv_indptr, last_page_len, **words)

    def run():
        attention.run(workspace, q, k, v, o, kv_indices=pages)

    plan()
    if on_gpu:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        run = graph.replay
    found = {}
    for name, words in (("apart", {}), ("shared", {"kv_indices": page_ids})):  # ids on the host, for plan()
        summary = plan(**words)
        run()
        found[name] = o.float().clone()
        print(f"{name}: {summary.shared_prefixes} prefixes, {summary.shared_keys} keys not read again"
              + (f", {milliseconds(run):.4f} ms" if on_gpu else ""))
    assert summary.shared_prefixes == 1
    error = (found["shared"] - found["apart"]).abs().max().item()
    print(f"{REQUESTS} requests behind {prefix_pages * PAGE} keys on {engine.device.name}: they differ by {error:.1e}")
    assert error < 0.01


if __name__ == "__main__":
    main()
