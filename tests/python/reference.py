"""Attention by its definition, in double precision: what every test compares with. NumPy only."""
import numpy as np

LOG2_E = np.log2(np.e)


def bf16_bits(x):
    """float array -> uint16 bits of bfloat16, rounded to nearest even."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16_bits(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def attention(q, k, v, *, causal=False, window_left=None, cap=None, sinks=None, mask=None, scale=None):
    """One request: q [qo_len, heads, dim], k and v [kv_len, kv_heads, dim], mask [qo_len, kv_len] ->
    o [qo_len, heads, dim], lse [qo_len, heads] (natural log)."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    qo_len, heads, dim = q.shape
    kv_len, kv_heads, _ = k.shape
    k, v = (np.repeat(x, heads // kv_heads, axis=1) for x in (k, v))
    logits = np.einsum("qhd,khd->hqk", q, k) * (scale or dim ** -0.5)
    if cap:
        logits = cap * np.tanh(logits / cap)
    q_pos = kv_len - qo_len + np.arange(qo_len)[:, None]
    kv_pos = np.arange(kv_len)[None, :]
    keep = np.ones((qo_len, kv_len), bool)
    if causal:
        keep &= kv_pos <= q_pos
    if window_left is not None and window_left >= 0:
        keep &= q_pos - kv_pos <= window_left
    if mask is not None:
        keep &= mask
    logits = np.where(keep, logits, -np.inf)
    if sinks is not None:
        sink = np.broadcast_to(np.asarray(sinks, np.float64)[:, None, None], (heads, qo_len, 1))
        logits = np.concatenate([logits, sink], -1)
        v = np.concatenate([v, np.zeros((1, heads, dim))])
    top = np.max(logits, -1, keepdims=True, initial=-np.inf)
    weights = np.exp(logits - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + np.where(np.isinf(top), 0, top))[..., 0]
    o = np.einsum("hqk,khd->qhd", weights / np.where(total > 0, total, 1), v)
    return o, lse.T


def batch(q, qo_indptr, keys_of, **words):
    """A batch: keys_of(r) -> k, v of request r. `words` may be functions of r."""
    o, lse = [], []
    for r in range(len(qo_indptr) - 1):
        own = {name: value(r) if callable(value) else value for name, value in words.items()}
        out = attention(q[qo_indptr[r]:qo_indptr[r + 1]], *keys_of(r), **own)
        o.append(out[0])
        lse.append(out[1])
    return np.concatenate(o), np.concatenate(lse)


def paged(k_pages, v_pages, kv_indptr, last_page_len, pages):
    """keys_of() for NHD pages [num_pages, page_size, kv_heads, dim]."""
    def keys_of(r):
        ids = pages[kv_indptr[r]:kv_indptr[r + 1]]
        length = max(0, len(ids) - 1) * k_pages.shape[1] + last_page_len[r] if len(ids) else 0
        return tuple(x[ids].reshape(-1, *x.shape[2:])[:length] for x in (k_pages, v_pages))
    return keys_of


def assert_close(found, wanted, tolerance):
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert found.shape == wanted.shape
    assert not np.isnan(found).any(), "there are NaNs"
    both = np.isinf(wanted) & (found == wanted)
    error = np.where(both, 0, np.abs(found - np.where(both, 0, wanted)))
    assert error.max(initial=0) <= tolerance, f"error {error.max():.3g} at {np.unravel_index(error.argmax(), error.shape)}"
