"""share_prefixes on the CPU device: the same results from fewer keys."""
import numpy as np
import pytest

import heddle
import reference

SHAPE = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 32}
PREFIX, OWN, PAGE = 60, 2, 16  # pages; worth sharing by two already


def batch_of(requests):
    """Every request's pages, those of the prefix first; keys of its last page."""
    pages = [*range(PREFIX)] + [0] * OWN
    tables = [pages[:PREFIX] + [PREFIX + OWN * r + i for i in range(OWN)] for r in range(requests)]
    return [0, *np.cumsum([len(t) for t in tables]).tolist()], np.concatenate(tables).astype(np.int32), \
        [1 + 3 * r % PAGE for r in range(requests)]


@pytest.mark.parametrize("form", [lambda x: x, list])
def test_a_prefix_is_found_and_every_row_is_right(engine, form):
    attention = engine.attention(variant="causal", share_prefixes=True, **SHAPE)
    assert attention.config.share_prefixes
    workspace = attention.workspace(max_requests=8, max_qo_rows=8, max_kv_tokens=1 << 14)
    rng = np.random.default_rng(2)
    for requests in (6, 2, 8):
        kv_indptr, pages, last = batch_of(requests)
        q, k, v = (reference.bf16_bits(rng.standard_normal(shape)) for shape in
                   ((requests, 4, 32), (PREFIX + OWN * requests, PAGE, 2, 32), (PREFIX + OWN * requests, PAGE, 2, 32)))
        f = reference.from_bf16_bits
        wanted = reference.batch(f(q), range(requests + 1), reference.paged(f(k), f(v), kv_indptr, last, pages))
        for shared in (True, False):
            summary = attention.plan(workspace, list(range(requests + 1)), kv_indptr, last,
                                     kv_indices=form(pages) if shared else None)
            assert (summary.shared_prefixes > 0) == shared and (summary.shared_keys > 0) == shared
            o, lse = np.full_like(q, 0x7FC0), np.full((requests, 4), np.nan, np.float32)
            attention.run(workspace, q, k, v, o, kv_indices=pages, lse=lse)
            reference.assert_close(f(o), wanted[0], 0.02)
            reference.assert_close(lse, wanted[1], 2e-3)


def test_what_is_refused(engine):
    with pytest.raises(heddle.InputError, match="share_prefixes needs pages"):
        engine.attention(share_prefixes=True, page_size=0, **SHAPE)
    with pytest.raises(heddle.UnsupportedError, match="has a window or sinks"):
        engine.attention(variant="sliding_window", share_prefixes=True, **SHAPE)
    plain = engine.attention(**SHAPE)
    workspace = plain.workspace(max_requests=2, max_qo_rows=2, max_kv_tokens=64)
    with pytest.raises(heddle.InputError, match="which only a plan with share_prefixes reads"):
        plain.plan(workspace, [0, 1], [0, 1], [3], kv_indices=[0])
