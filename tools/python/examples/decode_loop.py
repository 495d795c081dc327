#!/usr/bin/env python3
"""A decode loop in PyTorch, while requests come, grow and end: plan once a step; in every layer append_kv brings the new
keys and values to their pages and run attends to them.

On a GPU all layers of a step are one CUDA graph, captured once and replayed for every batch. The CPU device has no
graphs: there the same calls run directly.

    python3 tools/python/examples/decode_loop.py
"""
import torch

import heddle

LAYERS, STEPS, PAGE, HEADS, KV_HEADS, DIM, HIDDEN = 4, 40, 16, 8, 2, 64, 128
MAX_REQUESTS, NUM_PAGES, VOCABULARY = 8, 64, 100


class Request:
    def __init__(self, number):
        self.number, self.tokens, self.pages = number, [], []

    def step(self, free):
        """One more token; where a model would sample, any rule will do."""
        self.tokens.append((31 * self.number + 7 * len(self.tokens)) % VOCABULARY)
        if len(self.pages) * PAGE < len(self.tokens):
            self.pages.append(free.pop())


def lists(running):
    """plan()'s, and the page ids. The lengths count the new token already."""
    kv_indptr, pages = [0], []
    for request in running:
        pages += request.pages
        kv_indptr.append(len(pages))
    last_page_len = [(len(request.tokens) - 1) % PAGE + 1 for request in running]
    return list(range(len(running) + 1)), kv_indptr, last_page_len, pages


class Model:
    """Attention alone, a token in and a row of HIDDEN out. Everything that a graph reads stays where it is."""

    def __init__(self, engine):
        self.device = engine.device.kind
        self.attention = engine.attention(variant="causal", num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM,
                                          page_size=PAGE, max_qo_len=1, max_requests=MAX_REQUESTS, append_kv="copy")
        self.workspace = self.attention.workspace(max_requests=MAX_REQUESTS, max_qo_rows=MAX_REQUESTS,
                                                  max_kv_tokens=NUM_PAGES * PAGE)
        weights = lambda *shape: self.new(*shape).normal_(std=shape[0] ** -0.5)  # noqa: E731
        self.embedding = self.new(VOCABULARY, HIDDEN).normal_()
        self.w_qkv = [weights(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM) for _ in range(LAYERS)]
        self.w_o = [weights(HEADS * DIM, HIDDEN) for _ in range(LAYERS)]
        self.cache = [(self.new(NUM_PAGES, PAGE, KV_HEADS, DIM), self.new(NUM_PAGES, PAGE, KV_HEADS, DIM))
                      for _ in range(LAYERS)]
        self.o, self.out = self.new(MAX_REQUESTS, HEADS, DIM), self.new(MAX_REQUESTS, HIDDEN)
        self.tokens = torch.zeros(MAX_REQUESTS, dtype=torch.int64, device=self.device)
        self.pages = torch.zeros(NUM_PAGES, dtype=torch.int32, device=self.device)
        self.graph = None
        self.steps = 0

    def new(self, *shape):
        return torch.zeros(*shape, dtype=torch.bfloat16, device=self.device)

    def layers(self):
        x = self.embedding[self.tokens]
        for w_qkv, w_o, (k, v) in zip(self.w_qkv, self.w_o, self.cache):
            qkv = (x @ w_qkv).view(MAX_REQUESTS, HEADS + 2 * KV_HEADS, DIM)
            q, new_k, new_v = qkv.split([HEADS, KV_HEADS, KV_HEADS], 1)  # views, no copies
            self.attention.append_kv(self.workspace, new_k, new_v, k, v, kv_indices=self.pages)
            self.attention.run(self.workspace, q, k, v, self.o, kv_indices=self.pages)
            x = x + self.o.view(MAX_REQUESTS, -1) @ w_o
        self.out.copy_(x)

    def step(self, running):
        *lengths, pages = lists(running)
        self.tokens[:len(running)] = torch.tensor([request.tokens[-1] for request in running])
        self.pages[:len(pages)] = torch.tensor(pages, dtype=torch.int32)
        summary = self.attention.plan(self.workspace, *lengths)
        self.steps += 1
        if self.device == "cpu" or self.steps == 1:  # the first step also wakes PyTorch's libraries
            self.layers()
            return summary
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.layers()
        self.graph.replay()
        return summary

    def by_definition(self, tokens):
        """The last row of the whole sequence at once, in double precision."""
        x = self.embedding[torch.tensor(tokens, device=self.device)].double()
        hidden = torch.ones(len(tokens), len(tokens), dtype=torch.bool, device=self.device).triu(1)
        for w_qkv, w_o in zip(self.w_qkv, self.w_o):
            q, k, v = (x @ w_qkv.double()).view(len(tokens), -1, DIM).split([HEADS, KV_HEADS, KV_HEADS], 1)
            k, v = (y.repeat_interleave(HEADS // KV_HEADS, 1) for y in (k, v))
            logits = torch.einsum("qhd,khd->hqk", q, k) * DIM ** -0.5
            weights = logits.masked_fill(hidden, -torch.inf).softmax(-1)
            x = x + torch.einsum("hqk,khd->qhd", weights, v).reshape(len(tokens), -1) @ w_o.double()
        return x[-1]


def main():
    torch.manual_seed(0)
    model = Model(heddle.Engine("auto" if torch.cuda.is_available() else "cpu"))
    running, free = [], list(range(NUM_PAGES))
    for number in range(STEPS):
        if number % 5 == 0 and len(running) < MAX_REQUESTS:
            running.append(Request(number))
        if number % 13 == 12:
            free += running.pop(0).pages
        for request in running:
            request.step(free)
        summary = model.step(running)
        if number % 5 == 0:
            print(f"step {number:2}: {len(running)} requests, {summary}")
    worst = 0.0
    for row, request in zip(model.out, running):
        wanted = model.by_definition(request.tokens)
        worst = max(worst, ((row - wanted).abs().max() / wanted.abs().max()).item())
    print(f"{STEPS} steps of {LAYERS} layers on {model.device}, {'one graph' if model.graph else 'no graph'}; "
          f"relative error {worst:.1e}")
    assert worst < 0.05


if __name__ == "__main__":
    main()
