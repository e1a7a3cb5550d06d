"""A prefix of known output read at once is one decoded token by token, for every method."""

from __future__ import annotations

import pytest
import torch
from examples import BACKENDS

import attention
from attention.testing.driving import decode, prefill
from attention.testing.driving import text as tokens
from tests.attention.oracles.models import tiny_model

PROMPTS, LENGTH = (5, 8), 90
MORE = (
    attention.RaaS(budget=40, page=4),
    attention.RaaS(budget=32, page=4, alpha=0.1, gqa="sum"),
    attention.H2O(budget=40, score_from_prefill=False, decay=0.9),
    attention.RKV(budget=48),
    attention.SnapKV(budget=40, window=4),
    attention.InfLLM(budget=64),
    attention.Quest(budget=48, dense_layers=1),
    attention.Oracle(budget=30, gqa="mean"),
)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [*BACKENDS, *MORE], ids=str)
def test_a_known_prefix_read_at_once_is_one_decoded(backend: attention.Backend) -> None:
    """Logits of all later tokens and the positions kept at the end; rows differ in length."""
    m, ids = tiny_model(), tokens(2, LENGTH, seed=3)
    until = int(min(backend.exact_until, LENGTH // 2))
    known = [max(prompt, until - 2 * r) for r, prompt in enumerate(PROMPTS)]
    with backend.on(m) as cache:
        prefill(m, cache, [text[:n] for text, n in zip(ids, PROMPTS, strict=True)])
        later = [text[n : n + LENGTH - PROMPTS[1]] for text, n in zip(ids, PROMPTS, strict=True)]
        want = decode(m, cache, torch.stack(later))
        fresh = cache.new(prompts=PROMPTS)
        prefill(m, fresh, [text[:n] for text, n in zip(ids, known, strict=True)])
        steps = LENGTH - max(known)
        got = decode(
            m, fresh, torch.stack([t[n : n + steps] for t, n in zip(ids, known, strict=True)])
        )
    for r, (prompt, n) in enumerate(zip(PROMPTS, known, strict=True)):
        due = want[r, n - prompt :][:steps]
        assert (got[r, : len(due)] - due).abs().max() < 1e-9
        assert torch.equal(got[r, : len(due)].argmax(-1), due.argmax(-1))
