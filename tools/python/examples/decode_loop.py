#!/usr/bin/env python3
"""A decode loop in PyTorch: plan once a step, run in every layer; on a GPU one graph, captured once, is replayed
while requests grow, end and come.

    python3 tools/python/examples/decode_loop.py
"""
import torch

import heddle

LAYERS, STEPS, PAGE, HEADS, KV_HEADS, DIM = 4, 40, 16, 8, 2, 64
MAX_REQUESTS, NUM_PAGES = 8, 256


class Requests:
    """Who is running, with the pages of each."""

    def __init__(self):
        self.free = list(range(NUM_PAGES))
        self.running = []  # (keys, pages)

    def step(self, number):
        if number % 5 == 0 and len(self.running) < MAX_REQUESTS:
            self.running.append([7 * number % 100, []])
        if number % 13 == 12:
            self.free += self.running.pop(0)[1]
        for request in self.running:
            request[0] += 1
            while len(request[1]) * PAGE < request[0]:
                request[1].append(self.free.pop())

    def lists(self):
        kv_indptr, last_page_len, pages = [0], [], []
        for keys, own in self.running:
            pages += own
            kv_indptr.append(len(pages))
            last_page_len.append(keys - (len(own) - 1) * PAGE)
        return list(range(len(self.running) + 1)), kv_indptr, last_page_len, pages


class Model:
    """What of a model matters here: each layer's cache, and one query a request."""

    def __init__(self, device):
        engine = heddle.Engine(device)
        self.attention = engine.attention(variant="causal", num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM,
                                          page_size=PAGE, max_qo_len=1)
        self.workspace = self.attention.workspace(max_requests=MAX_REQUESTS, max_qo_rows=MAX_REQUESTS,
                                                  max_kv_tokens=NUM_PAGES * PAGE)
        new = lambda *shape: torch.randn(*shape, device=device).to(torch.bfloat16)  # noqa: E731
        self.q = new(MAX_REQUESTS, HEADS, DIM)
        self.o = torch.zeros_like(self.q)
        self.cache = [(new(NUM_PAGES, PAGE, KV_HEADS, DIM), new(NUM_PAGES, PAGE, KV_HEADS, DIM)) for _ in range(LAYERS)]
        self.pages = torch.zeros(NUM_PAGES, dtype=torch.int32, device=device)  # a graph reads it where it is
        self.graph = None
        self.on_gpu = engine.device.kind == "cuda"

    def layers(self):
        for k, v in self.cache:
            self.attention.run(self.workspace, self.q, k, v, self.o, kv_indices=self.pages)
            self.q.copy_(self.o)  # where a model has its projections and its MLP

    def step(self, qo_indptr, kv_indptr, last_page_len, pages):
        self.pages[:len(pages)] = torch.tensor(pages, dtype=torch.int32)
        summary = self.attention.plan(self.workspace, qo_indptr, kv_indptr, last_page_len)
        if not self.on_gpu:
            self.layers()
            return summary
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.layers()
        self.graph.replay()
        return summary


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, requests = Model(device), Requests()
    for number in range(STEPS):
        requests.step(number)
        summary = model.step(*requests.lists())
        if number % 5 == 0:
            print(f"step {number:2}: {len(requests.running)} requests, {summary}")
    assert torch.isfinite(model.q.float()).all()
    print(f"{STEPS} steps of {LAYERS} layers on {device}" + (", one graph" if model.graph else ""))


if __name__ == "__main__":
    main()
