"""Batches on the GPU for gpu_check.py, and attention by its definition to hold their results against."""
import torch

HEADS, KV_HEADS, DIM, PAGE = 8, 2, 128, 16
GPU = torch.device("cuda:0")


def random(*shape, seed=0, dtype=torch.bfloat16):
    generator = torch.Generator(device=GPU).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=GPU).to(dtype)


def attention(q, k, v, causal=False, window=None, cap=None, sinks=None, scale=None):
    """One request in double: q [qo, heads, dim], k and v [kv, kv_heads, dim] -> o, lse."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    logits = torch.einsum("qhd,khd->hqk", q, k) * (scale or q.shape[2] ** -0.5)
    if cap:
        logits = cap * torch.tanh(logits / cap)
    q_pos = len(k) - len(q) + torch.arange(len(q), device=GPU)[:, None]
    kv_pos = torch.arange(len(k), device=GPU)[None]
    keep = torch.ones(len(q), len(k), dtype=torch.bool, device=GPU)
    if causal:
        keep &= kv_pos <= q_pos
    if window is not None:
        keep &= q_pos - kv_pos <= window
    logits = logits.masked_fill(~keep, -torch.inf)
    if sinks is not None:
        logits = torch.cat([logits, sinks.double()[:, None, None].expand(-1, len(q), 1)], -1)
        v = torch.cat([v, torch.zeros_like(v[:1])])
    lse = torch.logsumexp(logits, -1)
    weights = torch.exp(logits - lse.masked_fill(lse.isinf(), 0)[..., None])
    return torch.einsum("hqk,khd->qhd", weights, v), lse.T


class Batch:
    """Lengths, pages in random order, K and V; checks o and lse."""

    def __init__(self, qo_lens, kv_lens, seed=1, dtype=torch.bfloat16, page=PAGE):
        self.kv_lens, self.page = kv_lens, page
        self.qo_indptr = [0, *torch.tensor(qo_lens).cumsum(0).tolist()]
        counts = [-(-n // page) for n in kv_lens]
        self.kv_indptr = [0, *torch.tensor(counts).cumsum(0).tolist()]
        self.last = [n - (c - 1) * page if c else 0 for n, c in zip(kv_lens, counts)]
        generator = torch.Generator().manual_seed(seed)
        self.pages = torch.randperm(self.kv_indptr[-1], generator=generator).int().to(GPU)
        self.q = random(self.qo_indptr[-1], HEADS, DIM, seed=seed, dtype=dtype)
        self.k, self.v = (random(len(self.pages), page, KV_HEADS, DIM, seed=seed + s, dtype=dtype) for s in (1, 2))
        self.o = torch.full_like(self.q, torch.nan)
        self.lse = torch.full(self.q.shape[:2], torch.nan, device=GPU)

    def lists(self):
        return self.qo_indptr, self.kv_indptr, self.last

    def keys_of(self, r):
        ids = self.pages[self.kv_indptr[r]:self.kv_indptr[r + 1]].long()
        return (x[ids].flatten(0, 1)[:self.kv_lens[r]] for x in (self.k, self.v))

    def put_new_rows(self, new_k, new_v):
        """Into K and V: each request's last keys, as many as it has query rows."""
        for r, length in enumerate(self.kv_lens):
            rows = torch.arange(self.qo_indptr[r], self.qo_indptr[r + 1], device=GPU)
            position = length - self.qo_indptr[r + 1] + rows
            ids = self.pages[self.kv_indptr[r] + position // self.page].long()
            self.k[ids, position % self.page] = new_k[rows]
            self.v[ids, position % self.page] = new_v[rows]

    def error(self, o=None, lse=None, lse_factor=1.0, **words):
        """The largest errors of o and lse."""
        o, lse = self.o if o is None else o, self.lse if lse is None else lse
        torch.cuda.synchronize()
        worst_o = worst_lse = 0.0
        for r in range(len(self.kv_lens)):
            rows = slice(self.qo_indptr[r], self.qo_indptr[r + 1])
            exact_o, exact_lse = attention(self.q[rows], *self.keys_of(r), **words)
            exact_lse = exact_lse * lse_factor
            same = exact_lse == lse[rows].double()  # -inf where a row sees no key
            difference = torch.where(same, 0, (lse[rows].double() - exact_lse).abs())
            for found in ((o[rows].double() - exact_o).abs(), difference):
                assert not found.isnan().any(), f"NaN in request {r}"
            worst_o = max(worst_o, (o[rows].double() - exact_o).abs().max().item() if exact_o.numel() else 0)
            worst_lse = max(worst_lse, difference.max().item() if difference.numel() else 0)
        assert worst_o < 0.02 and worst_lse < 5e-3, f"o {worst_o:.3g} (allowed 0.02), lse {worst_lse:.3g} (0.005)"
        return f"o {worst_o:.1e}, lse {worst_lse:.1e}"
