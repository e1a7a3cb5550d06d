"""Several streams over one model, in turn and in threads: each as if it were alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest

import pytest
import torch
from tiny_models import FIVE_PROMPTS, Endings, build_model

import attention
import lil
from lil.chopper import Classifier

BACKENDS = (attention.Full(), attention.H2O(budget=16), attention.Quest(budget=32, dense_layers=0))


@pytest.fixture(scope="module")
def model():
    return build_model("qwen3")


def options(model, index: int) -> dict[str, object]:
    """A run that reads hidden states and margins too."""
    generator = torch.Generator().manual_seed(5)
    layer = Classifier(torch.randn(model.config.hidden_size, generator=generator), 0.4, -2, "tiny")
    return {
        "backend": BACKENDS[index],
        "max_new_tokens": 22,
        "batch_size": 1 + index,
        "penalties": [Endings()],
        "probes": [lil.Chopper(layer, short=3)],
    }


def seen(trace: lil.Trace) -> tuple[object, ...]:
    return trace.new_ids, trace.finish, trace.signals


def alone(model, tokenizer, index: int) -> list[tuple[object, ...]]:
    return [seen(t) for t in lil.decode(model, tokenizer, FIVE_PROMPTS, **options(model, index))]


def test_streams_in_turn_are_streams_alone(model, tokenizer):
    before, want = model.config._attn_implementation, [alone(model, tokenizer, i) for i in (0, 1)]
    assert any(signal for _, _, signals in want[0] for signal in signals.values())
    streams = [lil.stream(model, tokenizer, FIVE_PROMPTS, **options(model, i)) for i in (0, 1)]
    got: list[dict[int, tuple[object, ...]]] = [{}, {}]
    for pair in zip_longest(*streams):
        for i, pieces in enumerate(pair):
            if pieces is not None:
                got[i][pieces[0]] = seen(pieces[1])
    assert [[pieces[i] for i in range(len(FIVE_PROMPTS))] for pieces in got] == want
    assert model.config._attn_implementation == before


def test_decode_in_threads_is_decode_alone(model, tokenizer):
    before = model.config._attn_implementation
    want = [alone(model, tokenizer, i) for i in range(len(BACKENDS))]
    jobs = range(len(BACKENDS))
    with ThreadPoolExecutor(len(BACKENDS)) as pool:
        for i, got in zip(jobs, pool.map(lambda i: alone(model, tokenizer, i), jobs), strict=True):
            assert got == want[i]
    assert model.config._attn_implementation == before
