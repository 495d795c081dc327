#!/usr/bin/env python3
"""The rows of tools/workloads.json through the Python package, in PyTorch's CUDA graphs, timed as `heddle bench` does.

    build/heddle bench --json bench.json
    PYTHONPATH=build/python python3 tests/python/gpu_workloads.py bench.json [MORE.json...] --json out.json

Each row is checked on sampled query rows first. A graph holds at least 8 launches, in turn on copies of K and V that
together are well past the L2. The files named hold rows of `heddle bench` and of peers: beside each time stand the
ratio to the bench's (to the mean, where several files have the row) and to the best peer's. Exit code 1 where a row is
wrong, or further than --within from the bench. `--device cpu --cut 40` tries the script without a GPU.
"""
import argparse
import concurrent.futures
import json
import pathlib
import random
import sys
import time

import torch

import heddle

L2_BYTES, LEAST_LAUNCHES, REPLAYS = 60 << 20, 8, 7
REST = 0.3  # seconds, as in tools/gpu_timer.cc: after the check, a GPU is held back by its power limit
TABLE = pathlib.Path(__file__).resolve().parents[2] / "tools" / "workloads.json"
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def lengths(rule):
    """A list, or a rule of planner/lengths.h: 64x4096, 1x131072+255x1024, zipf:256:65536, uniform:64:256:16384."""
    if isinstance(rule, list):
        return rule
    kind, *numbers = rule.split(":")
    if kind == "zipf":
        return [max(64, int(numbers[1]) // (i + 1)) for i in range(int(numbers[0]))]
    if kind == "uniform":
        draw = random.Random(7)
        return [draw.randint(int(numbers[1]), int(numbers[2])) for _ in range(int(numbers[0]))]
    return [int(part.split("x")[1]) for part in rule.split("+") for _ in range(int(part.split("x")[0]))]


def running(counts):
    return [0, *torch.tensor(counts, dtype=torch.int64).cumsum(0).tolist()]


class Row:
    """A workload: its lengths, its variant and the AttentionConfig's words."""

    def __init__(self, entry, cut):
        self.name, self.kind, self.page = entry["name"], entry["kind"], entry["page"]
        self.qo, self.kv = ([min(n, cut) for n in lengths(entry[word])] for word in ("qo", "kv"))
        self.heads, self.kv_heads, self.dim = entry["heads"]
        self.dtype = DTYPES[entry.get("dtype", "bf16")]
        self._mask_and_hooks(entry)
        self.config = {"variant": self.variant, "num_qo_heads": self.heads, "num_kv_heads": self.kv_heads,
                       "head_dim": self.dim, "q_dtype": self.dtype, "page_size": self.page,
                       "max_qo_len": max(self.qo), "max_requests": len(self.qo),
                       "batch_invariant": entry.get("batch_invariant", False)}
        self.pages_of = [-(-n // max(1, self.page)) for n in self.kv]
        self.qo_indptr, self.kv_indptr = running(self.qo), running(self.pages_of)
        self.last = [n - (pages - 1) * self.page for n, pages in zip(self.kv, self.pages_of)] if self.page else None

    def _mask_and_hooks(self, entry):
        """The variant under the name that `heddle bench` gives it, so that both find the same compiled kernels."""
        named, params = entry.get("variant", ""), entry.get("params", {})
        self.cap = entry.get("soft_cap", 0) or params.get("cap", 0)
        self.window = entry.get("window_left", params.get("window", -1))
        self.causal = entry.get("causal", False) or self.window >= 0
        self.bias = params.get("bias") if named == "sigmoid" else None
        self.params = {**({"cap": self.cap} if self.cap else {}), **({"window": self.window} if self.window >= 0 else {}),
                       **params}
        parts = [part for part, has in (("soft_cap", self.cap), ("sliding_window", self.window >= 0),
                                        ("causal", self.causal and self.window < 0)) if has] or ["softmax"]
        self.variant = named or "bench_" + "_".join(parts)
        self.spec = None if named else {"name": self.variant, "compose": parts}

    def visible(self, request, row):
        """Keys [begin, end) that a query row sees."""
        position = self.kv[request] - self.qo[request] + row
        end = position + 1 if self.causal else self.kv[request]
        return max(0, position - self.window) if self.window >= 0 else 0, end

    def kv_bytes(self):
        keys = sum(self.visible(r, m - 1)[1] - self.visible(r, 0)[0] for r, m in enumerate(self.qo) if m)
        return 4 * keys * self.kv_heads * self.dim

    def bytes(self):
        return self.kv_bytes() + 4 * sum(self.qo) * self.heads * self.dim

    def layers(self):
        return min(24, max(2, -(-4 * L2_BYTES // max(1, self.kv_bytes()))))


class Case:
    """One row's tensors on the device: q, o, pages in no order, and K and V for each layer."""

    def __init__(self, row, attention, device):
        self.row, self.attention = row, attention
        torch.manual_seed(0)
        new = lambda *shape: torch.randn(*shape, device=device, dtype=row.dtype)  # noqa: E731
        entries = row.kv_indptr[-1]
        shape = (entries, row.page, row.kv_heads, row.dim) if row.page else (entries, row.kv_heads, row.dim)
        self.layers = [(new(*shape), new(*shape)) for _ in range(row.layers())]
        self.q = new(sum(row.qo), row.heads, row.dim)
        self.o = torch.full_like(self.q, torch.nan)
        self.pages = torch.randperm(entries, device=device).int() if row.page else None
        self.workspace = attention.workspace(max_requests=len(row.qo), max_qo_rows=sum(row.qo), max_kv_tokens=sum(row.kv),
                                             max_qo_len=max(row.qo))

    def plan(self):
        row = self.row
        self.attention.plan(self.workspace, row.qo_indptr, row.kv_indptr, row.last, params=row.params)

    def run(self, layer):
        self.attention.run(self.workspace, self.q, *self.layers[layer], self.o, kv_indices=self.pages,
                           params=self.row.params)

    def keys_and_values(self, request):
        begin, end = self.row.kv_indptr[request:request + 2]
        k, v = (x[begin:end] if self.pages is None else x[self.pages[begin:end].long()].flatten(0, 1)
                for x in self.layers[0])
        return k[:self.row.kv[request]], v[:self.row.kv[request]]

    def expected(self, request, i):
        """One query row by definition, in double: [heads, dim]."""
        row = self.row
        begin, end = row.visible(request, i)
        group = row.heads // row.kv_heads
        k, v = (x[begin:end].double().repeat_interleave(group, 1) for x in self.keys_and_values(request))
        logits = torch.einsum("hd,nhd->hn", self.q[row.qo_indptr[request] + i].double(), k) * row.dim ** -0.5
        if row.cap:
            logits = row.cap * torch.tanh(logits / row.cap)
        weights = logits.softmax(-1) if row.bias is None else torch.sigmoid(logits + row.bias)
        return torch.einsum("hn,nhd->hd", weights, v)

    def error(self):
        """The largest error of sampled rows; what is allowed is as in tools/bench_check.cc."""
        worst = largest = 0.0
        last = len(self.row.qo) - 1
        for request in sorted({0, last // 2, last}):
            for i in sorted({0, self.row.qo[request] // 3, self.row.qo[request] - 1}):
                wanted = self.expected(request, i)
                found = self.o[self.row.qo_indptr[request] + i].double()
                assert torch.isfinite(found).all(), f"request {request}, row {i} is not finite"
                worst = max(worst, (found - wanted).abs().max().item())
                largest = max(largest, wanted.abs().max().item())
        allowed = min(2e-2 * max(1, largest / 4), 5e-2 * largest)
        assert worst <= allowed, f"wrong result: error {worst:.3g} on the sampled rows, {allowed:.3g} is allowed"
        return worst


def median(values):
    return sorted(values)[len(values) // 2]


def graph_us(calls):
    """Microseconds of one call: the median of replays of a graph of them."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    time.sleep(REST)
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return median(times)


def host_us(call, before=lambda: None, count=30):
    times = []
    for _ in range(count):
        before()
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e6)
    return median(times)


def measure(row, attention, device, on_gpu):
    if on_gpu:  # pools from the driver, as the bench's are
        torch.cuda.empty_cache()
    case = Case(row, attention, device)
    wait = torch.cuda.synchronize if on_gpu else (lambda: None)
    case.plan()
    case.run(0)
    wait()
    found = {"err": f"{case.error():.1e}", "plan_us": round(host_us(case.plan, wait), 1)}
    wait()
    found["run_us"] = round(host_us(lambda: case.run(0), wait), 1)  # host time; the queue is empty
    wait()
    if on_gpu:
        launches = -(-LEAST_LAUNCHES // len(case.layers)) * len(case.layers)
        us = graph_us([lambda layer=i % len(case.layers): case.run(layer) for i in range(launches)])
    else:
        us = host_us(lambda: case.run(0), count=1)
    return {"us": round(us, 2), "TBps": round(row.bytes() / us / 1e6, 3), **found}


def read_beside(paths):
    """Mean times of the bench's rows, and the best peer's, by workload."""
    bench, peers = {}, {}
    for path in paths:
        for row in json.loads(pathlib.Path(path).read_text())["rows"]:
            if not row.get("us"):
                continue
            if row["peer"] == "heddle":
                bench.setdefault(row["workload"], []).append(row["us"])
            elif row["peer"] != "heddle (Python)":
                peers.setdefault(row["workload"], []).append((row["us"], row["peer"]))
    return {name: sum(us) / len(us) for name, us in bench.items()}, {name: min(all_) for name, all_ in peers.items()}


def attentions(engine, rows):
    """One each, compiled side by side."""
    for row in rows:
        if row.spec and row.variant not in engine.variants:
            engine.register_variant(row.spec)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        made = {row.name: pool.submit(engine.attention, **row.config) for row in rows}
    return made


def line(found, bench, peers):
    if "error" in found:
        return f"{found['workload']:30}not run: {found['error']}"
    text = (f"{found['workload']:30}{found['us']:10.2f}{found['TBps']:8.2f}{found['err']:>9}{found['plan_us']:9.1f}"
            f"{found['run_us']:8.1f}")
    text += f"{found['of_bench']:10.3f}" if "of_bench" in found else f"{'-':>10}"
    return text + (f"  {found['of_peer']:.2f} of {peers[found['workload']][1]}" if "of_peer" in found else "")


def main():
    parser = argparse.ArgumentParser(description="workloads.json through the Python package")
    parser.add_argument("beside", nargs="*", help="JSON of `heddle bench` and of peers")
    parser.add_argument("--workloads", default=TABLE)
    parser.add_argument("--only", default="", help="prefixes of names, with commas")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--cut", type=int, default=1 << 30, help="no length beyond this")
    parser.add_argument("--within", type=float, default=0.02, help="of the bench")
    parser.add_argument("--seconds", type=float, default=200, help="no further row is begun after these")
    parser.add_argument("--json", type=pathlib.Path)
    given = parser.parse_args()
    begin, on_gpu = time.monotonic(), given.device == "cuda"
    engine = heddle.Engine(given.device)
    bench, peers = read_beside(given.beside)
    table = json.loads(pathlib.Path(given.workloads).read_text())["workloads"]
    chosen = [entry for entry in table if entry["name"].startswith(tuple(given.only.split(",")))]
    rows = [Row(entry, given.cut) for entry in chosen if entry["kind"] != "mla"]
    made = attentions(engine, rows)
    print(f"{engine.device.name}; Attentions made in {time.monotonic() - begin:.1f} s\n"
          f"{'workload':30}{'us':>10}{'TB/s':>8}{'err':>9}{'plan us':>9}{'run us':>8}{'of bench':>10}  of best peer",
          flush=True)
    found, failed = [], 0
    for row in rows:
        result = {"workload": row.name, "peer": "heddle (Python)"}
        try:
            if time.monotonic() - begin > given.seconds:
                raise TimeoutError(f"{given.seconds:.0f} s were over")
            result.update(measure(row, made[row.name].result(), given.device, on_gpu))
            if row.name in bench:
                result["of_bench"] = round(result["us"] / bench[row.name], 4)
            if row.name in peers:
                result["of_peer"] = round(result["us"] / peers[row.name][0], 4)
            failed += on_gpu and result.get("of_bench", 1) > 1 + given.within
        except (heddle.Error, AssertionError, TimeoutError, torch.OutOfMemoryError) as error:
            result["error"] = str(error).splitlines()[0]
            failed += 1
        found.append(result)
        print(line(result, bench, peers), flush=True)
        if on_gpu:
            torch.cuda.empty_cache()
    ratios = sorted(row["of_bench"] for row in found if "of_bench" in row)
    if ratios:
        print(f"of bench: least {ratios[0]:.3f}, median {median(ratios):.3f}, most {ratios[-1]:.3f}; "
              f"{sum(r <= 1 + given.within for r in ratios)} of {len(ratios)} within {given.within:.0%}")
    if given.json:
        given.json.write_text(json.dumps({"device": engine.device.name, "rows": found}, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
