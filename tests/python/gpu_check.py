#!/usr/bin/env python3
"""heddle with PyTorch on a GPU: prints PASS or FAIL and the figures of each item; exit code 1 if any fails.

    PYTHONPATH=build/python python3 tests/python/gpu_check.py [WORDS...]     only items whose name has a word

Needs PyTorch with CUDA and NVRTC (PyTorch brings it); pytest's test_gpu.py runs it where there is a GPU.
"""
import sys
import time
import traceback

import torch

import heddle
from gpu_batch import DIM, GPU, HEADS, KV_HEADS, PAGE, Batch, random

ITEMS = []


def item(function):
    ITEMS.append(function)
    return function


def make(engine, variant="causal", **words):
    return engine.attention(**{"variant": variant, "num_qo_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM,
                               "page_size": PAGE, **words})


def room(made, requests=64, rows=4096, tokens=1 << 18):
    return made.workspace(max_requests=requests, max_qo_rows=rows, max_kv_tokens=tokens)


def step(made, workspace, batch, layout="NHD", params=None, **words):
    made.plan(workspace, *batch.lists(), params=params)
    k, v = (x.transpose(1, 2).contiguous() if layout == "HND" else x for x in (batch.k, batch.v))
    made.run(workspace, batch.q, k, v, batch.o, kv_indices=batch.pages, lse=batch.lse, layout=layout, params=params,
             **words)


DECODE = [1] * 5, [1, 17, 900, 4000, 64]
MIXED = [1, 40, 0, 300, 7], [900, 65, 7, 300, 2000]


@item
def paged(engine):
    made = make(engine)
    workspace = room(made)
    said = []
    for lengths in (DECODE, MIXED):
        for layout in ("NHD", "HND"):
            batch = Batch(*lengths)
            step(made, workspace, batch, layout)
            said.append(batch.error(causal=True))
    return "; ".join(said)


@item
def paged_float16(engine):
    made, batch = make(engine, q_dtype=torch.float16), Batch(*MIXED, dtype=torch.float16)
    step(made, room(made), batch)
    return batch.error(causal=True)


@item
def ragged(engine):
    made, batch = make(engine, page_size=0), Batch(*MIXED, page=1)
    kv_indptr = batch.kv_indptr
    k, v = (x[batch.pages.long()].squeeze(1) for x in (batch.k, batch.v))
    workspace = room(made)
    made.plan(workspace, batch.qo_indptr, kv_indptr)
    made.run(workspace, batch.q, k, v, batch.o, lse=batch.lse)
    return batch.error(causal=True)


@item
def dense_table(engine):
    made, batch = make(engine), Batch(*MIXED)
    counts = [b - a for a, b in zip(batch.kv_indptr, batch.kv_indptr[1:])]
    table = torch.full((len(counts), max(counts) + 3), -1, dtype=torch.int32, device=GPU)
    for r, count in enumerate(counts):
        table[r, :count] = batch.pages[batch.kv_indptr[r]:batch.kv_indptr[r + 1]]
    workspace = room(made)
    made.plan(workspace, batch.qo_indptr, kv_lens=batch.kv_lens, kv_table_stride=table.stride(0))
    made.run(workspace, batch.q, batch.k, batch.v, batch.o, kv_indices=table, lse=batch.lse)
    return batch.error(causal=True)


@item
def soft_cap_and_window(engine):
    engine.register_variant({"name": "checked", "params": {"cap": {"type": "f32"}, "window": {"type": "i32", "min": 0}},
                             "mask": {"causal": True, "window_left": "window"},
                             "hooks": {"logits_transform": "return params.cap * tanh(logit / params.cap);"}})
    made = make(engine, "checked")
    workspace = room(made)
    said = []
    for cap, window in ((1.5, 100), (30.0, 33)):  # other values, the same kernels
        batch = Batch(*MIXED)
        step(made, workspace, batch, params={"cap": cap, "window": window})
        said.append(batch.error(causal=True, cap=cap, window=window))
    return "; ".join(said)


@item
def own_tensors(engine):
    engine.register_variant({"name": "sinks", "tensors": {"sinks": {"dtype": "f32", "shape": ["num_qo_heads"]}},
                             "mask": {"causal": True}, "hooks": {"initial_state": "return tensors.sinks[qo_head];"}})
    made, batch, sinks = make(engine, "sinks"), Batch(*MIXED), random(HEADS, dtype=torch.float32)
    step(made, room(made), batch, tensors={"sinks": sinks})
    return batch.error(causal=True, sinks=sinks)


@item
def graph(engine):
    """Captured once, replayed for batches of every size, on PyTorch's streams."""
    made = make(engine, max_qo_len=1)
    workspace = made.workspace(max_requests=16, max_qo_rows=16, max_kv_tokens=1 << 16)
    batches = [Batch([1] * n, [37 * (i + 1) % 3000 + 1 for i in range(n)], seed=n) for n in (8, 16, 1, 5)]
    pages = torch.zeros(1 << 12, dtype=torch.int32, device=GPU)
    pool = [torch.zeros(1 << 12, PAGE, KV_HEADS, DIM, dtype=torch.bfloat16, device=GPU) for _ in range(2)]
    q = torch.zeros(16, HEADS, DIM, dtype=torch.bfloat16, device=GPU)
    o, lse = torch.empty_like(q), torch.empty(16, HEADS, device=GPU)
    made.plan(workspace, *batches[0].lists())
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(3):  # layers
            made.run(workspace, q, *pool, o, kv_indices=pages, lse=lse)
    said = []
    for batch in batches:
        n = len(batch.kv_lens)
        pages[:len(batch.pages)] = batch.pages
        pool[0][:len(batch.k)], pool[1][:len(batch.v)], q[:n] = batch.k, batch.v, batch.q
        made.plan(workspace, *batch.lists())
        o.fill_(torch.nan)
        captured.replay()
        said.append(batch.error(o=o[:n], lse=lse[:n], causal=True))
    return "; ".join(said)


@item
def append_kv(engine):
    """New rows, views of a fused array, into their pages and attention over them: directly, and in one graph."""
    made = make(engine, append_kv="copy")
    workspace = room(made)
    said = []
    for lengths in (DECODE, MIXED):
        for in_graph in (False, True):
            batch = Batch(*lengths)
            qkv = random(len(batch.q), HEADS + 2 * KV_HEADS, DIM, seed=9)
            batch.q, new_k, new_v = qkv.split([HEADS, KV_HEADS, KV_HEADS], 1)
            k, v = batch.k.clone(), batch.v.clone()
            batch.put_new_rows(new_k, new_v)  # what the check reads

            def both():
                made.append_kv(workspace, new_k, new_v, k, v, kv_indices=batch.pages)  # noqa: B023
                made.run(workspace, batch.q, k, v, batch.o, kv_indices=batch.pages, lse=batch.lse)  # noqa: B023
            made.plan(workspace, *batch.lists())
            if in_graph:
                captured = torch.cuda.CUDAGraph()
                with torch.cuda.graph(captured):
                    both()
                captured.replay()
            else:
                both()
            said.append(batch.error(causal=True))
            assert torch.equal(k, batch.k) and torch.equal(v, batch.v), "the pages hold something else"
    return "; ".join(said)


@item
def merge_states(engine):
    o = random(5, 300, HEADS, DIM, seed=3, dtype=torch.float32)
    lse = 20 * random(5, 300, HEADS, seed=4, dtype=torch.float32)
    lse[:, 0, 0], lse[1:3, 5], o[1:3, 5] = -torch.inf, -torch.inf, torch.nan
    weights = torch.softmax(lse.double(), 0).nan_to_num(0)
    wanted = (weights[..., None] * o.double().nan_to_num(0)).sum(0)
    merge = engine.merge_states(head_dim=DIM)
    found, found_lse = torch.empty_like(o[0], dtype=torch.bfloat16), torch.empty_like(lse[0])
    for states in ((o, lse), list(zip(o, lse))):
        found.fill_(torch.nan)
        merge.run(states, found, found_lse)
        torch.cuda.synchronize()
        worst = ((found.double() - wanted).abs() / wanted.abs().clamp(min=1)).max().item()  # bfloat16 keeps 2^-8
        exact = torch.logsumexp(lse.double(), 0)
        worst_lse = torch.where(exact == found_lse, 0, (found_lse - exact).abs()).max().item()
        assert worst < 0.004 and worst_lse < 1e-4, f"o {worst:.3g}, lse {worst_lse:.3g}"
    return f"o {worst:.1e}, lse {worst_lse:.1e}"


@item
def shared_prefix(engine):
    made, batch = make(engine, share_prefixes=True), Batch([1] * 16, [16000 + 30 * i for i in range(16)])
    of = batch.kv_indptr
    for r in range(1, 16):
        batch.pages[of[r]:of[r] + 990] = batch.pages[:990]
    workspace = room(made, tokens=1 << 19)
    said = []
    for shared in (True, False):
        summary = made.plan(workspace, *batch.lists(), kv_indices=batch.pages.cpu() if shared else None)
        batch.o.fill_(torch.nan)
        made.run(workspace, batch.q, batch.k, batch.v, batch.o, kv_indices=batch.pages, lse=batch.lse)
        said.append(f"{summary.shared_keys} keys shared: {batch.error(causal=True)}")
        assert (summary.shared_prefixes == 1) == shared, summary.shared_prefixes
    return "; ".join(said)


@item
def streams(engine):
    """PyTorch's current stream, and one given as an integer or an object, ordered behind one another."""
    made, workspace = make(engine), None
    workspace = room(made)
    said = []
    for wish in ("current", "integer", "object"):
        side, batch = torch.cuda.Stream(), Batch(*MIXED)
        torch.cuda.synchronize()
        stream = {"current": None, "integer": side.cuda_stream, "object": side}[wish]
        with torch.cuda.stream(side if wish == "current" else torch.cuda.current_stream()):
            made.plan(workspace, *batch.lists(), stream=stream)
            made.run(workspace, batch.q, batch.k, batch.v, batch.o, kv_indices=batch.pages, lse=batch.lse, stream=stream)
        side.synchronize()
        said.append(batch.error(causal=True))
    return "; ".join(said)


@item
def host_and_device(engine):
    """What lies on the wrong side is refused; copy=True fetches lengths."""
    made, batch = make(engine), Batch(*MIXED)
    workspace = room(made)
    on_gpu = [torch.tensor(x, dtype=torch.int32, device=GPU) for x in batch.lists()]
    refused = []
    for call in (lambda: made.plan(workspace, *on_gpu),
                 lambda: made.run(workspace, batch.q.cpu(), batch.k, batch.v, batch.o, kv_indices=batch.pages)):
        try:
            call()
        except heddle.InputError as error:
            refused.append(str(error))
        made.plan(workspace, *on_gpu, copy=True)
    assert len(refused) == 2 and "copy=True" in refused[0] and "lies on the CPU" in refused[1], refused
    made.plan(workspace, *(x.long() for x in on_gpu), copy=True)
    made.run(workspace, batch.q, batch.k, batch.v, batch.o, kv_indices=batch.pages, lse=batch.lse)
    return batch.error(causal=True)


@item
def cuda_array_interface(engine):
    class Bare:
        def __init__(self, tensor):
            self.__cuda_array_interface__ = tensor.__cuda_array_interface__

    made, batch = make(engine, q_dtype="f16"), Batch(*MIXED, dtype=torch.float16)
    workspace = room(made)
    made.plan(workspace, *batch.lists())
    made.run(workspace, *(Bare(x) for x in (batch.q, batch.k, batch.v, batch.o)), kv_indices=Bare(batch.pages),
             lse=Bare(batch.lse))
    return batch.error(causal=True)


@item
def flashinfer(engine):
    import heddle.flashinfer as flashinfer
    log2_e = 1.4426950408889634
    buffer, said = torch.empty(1, dtype=torch.uint8, device=GPU), []
    batch = Batch(*MIXED)
    lists = [torch.tensor(x, dtype=torch.int32) for x in batch.lists()]
    prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(buffer)
    prefill.plan(lists[0].to(GPU), lists[1].to(GPU), batch.pages, lists[2].to(GPU), HEADS, KV_HEADS, DIM, PAGE,
                 causal=True, window_left=50, logits_soft_cap=5.0, q_data_type=torch.bfloat16)
    o, lse = prefill.run(batch.q, (batch.k, batch.v), return_lse=True)
    said.append(batch.error(o=o, lse=lse, lse_factor=log2_e, causal=True, window=50, cap=5.0))
    batch = Batch(*DECODE)
    lists = [torch.tensor(x, dtype=torch.int32) for x in batch.lists()]
    pages = torch.zeros(4096, dtype=torch.int32, device=GPU)
    decode = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(
        buffer, torch.zeros(6, dtype=torch.int32, device=GPU), pages, torch.zeros(5, dtype=torch.int32, device=GPU))
    plan = lambda: decode.plan(lists[1], batch.pages, lists[2], HEADS, KV_HEADS, DIM, PAGE,  # noqa: E731
                               data_type=torch.bfloat16)
    plan()
    decode.run(batch.q, (batch.k, batch.v), out=batch.o)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        decode.run(batch.q, (batch.k, batch.v), out=batch.o, lse=batch.lse)
    plan()
    batch.o.fill_(torch.nan)
    captured.replay()
    said.append(batch.error(lse_factor=log2_e))
    q, (k, v) = batch.q[:4], batch.keys_of(3)
    parts = [flashinfer.single_prefill_with_kv_cache(q, k[a:b], v[a:b], return_lse=True) for a, b in
             ((0, 1000), (1000, 4000))]
    merged = flashinfer.merge_state(*parts[0], *parts[1])
    whole = flashinfer.single_prefill_with_kv_cache(q, k, v, return_lse=True)
    assert (merged[0] - whole[0]).abs().max() < 0.01 and (merged[1] - whole[1]).abs().max() < 1e-3
    return "; ".join(said)


def host_us(call, rounds=20, count=200):
    """Host time of a call, the queue never long: the median of `rounds`."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        times.append((time.perf_counter() - begin) / count * 1e6)
    return sorted(times)[rounds // 2]


@item
def overhead(engine):
    """The binding alone, on the CPU device where C++ has nothing to do: run() at most 6 us. plan() of 64 requests,
    C++ and all, at most 15 us there. The GPU's figures hold the driver's launch and copy."""
    cpu = heddle.Engine("cpu").attention(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM)
    workspace = cpu.workspace(max_requests=64, max_qo_rows=64, max_kv_tokens=1 << 16)
    batch = Batch([1] * 64, [1000] * 64)
    on_cpu = [x.cpu() for x in (batch.q, batch.k, batch.v, batch.o)]
    words = {"kv_indices": batch.pages.cpu(), "lse": batch.lse.cpu()}
    cpu.plan(workspace, [0], [0], [])
    binding = host_us(lambda: cpu.run(workspace, *on_cpu, **words))
    forms = {"lists": batch.lists(), "tensors": [torch.tensor(x, dtype=torch.int32) for x in batch.lists()]}
    workspace = cpu.workspace(max_requests=64, max_qo_rows=64, max_kv_tokens=1 << 17)
    plans = {name: host_us(lambda: cpu.plan(workspace, *lists)) for name, lists in forms.items()}
    made = make(engine, max_qo_len=1)
    on_gpu = room(made)
    made.plan(on_gpu, *batch.lists())
    run = host_us(lambda: made.run(on_gpu, batch.q, batch.k, batch.v, batch.o, kv_indices=batch.pages, lse=batch.lse))
    plan = {name: host_us(lambda: made.plan(on_gpu, *lists)) for name, lists in forms.items()}
    said = (f"run {binding:.2f} us of binding, {run:.2f} us on the GPU; plan of 64 " +
            ", ".join(f"{plans[n]:.2f} us from {n} ({plan[n]:.2f} on the GPU)" for n in plans))
    assert binding < 6 and max(plans.values()) < 15, said
    return said


def main():
    engine = heddle.Engine("cuda")
    print(f"heddle {heddle.__version__}, PyTorch {torch.__version__}, CPython {sys.version.split()[0]}, "
          f"{engine.device.name} ({engine.device.arch})")
    chosen = [f for f in ITEMS if not sys.argv[1:] or any(word in f.__name__ for word in sys.argv[1:])]
    failed = 0
    for function in chosen:
        begin = time.perf_counter()
        try:
            verdict, said = "PASS", function(engine)
        except Exception as error:  # noqa: BLE001: one item's failure must not hide the others'
            verdict, said, failed = "FAIL", f"{type(error).__name__}: {error}", failed + 1
            traceback.print_exc()
        print(f"{verdict} {function.__name__:<22}{time.perf_counter() - begin:6.2f} s  {said}", flush=True)
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
