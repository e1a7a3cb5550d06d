"""Window: the last tokens, and nothing else."""

from __future__ import annotations

import pytest
import torch
from driving import follow, model, prefill, step, tokens

import attention


@pytest.mark.parametrize("budget", [1, 2, 9, 40])
def test_kept_and_read_are_the_last(budget: int) -> None:
    m = model()
    with attention.Window(budget=budget).on(m) as cache:
        prefill(m, cache, [tokens(20), tokens(1, seed=1)])
        for column in tokens(2, 25).T:
            step(m, cache, column)
            for r, n in enumerate(cache.seen.tolist()):
                want = list(range(max(n - budget, 0), n))
                for layer in range(2):
                    assert cache.kept_positions(layer)[r].tolist() == [want, want]
                    assert cache.read_positions(layer)[r].tolist() == [want, want]


def test_it_is_a_sink_without_sinks() -> None:
    m, given = model(), tokens(2, 20)
    texts = [tokens(14), tokens(3, seed=1)]
    logits = []
    for backend in (attention.Window(budget=8), attention.Sink(budget=8, sinks=0)):
        with backend.on(m) as cache:
            logits.append(follow(m, cache, texts, given))
    assert torch.equal(*logits)


@pytest.mark.parametrize("arguments", [{"budget": 0}, {"budget": 2.0}, {"budget": True}])
def test_bad_parameters_are_refused(arguments) -> None:
    with pytest.raises(attention.InvalidValue):
        attention.Window(**arguments)
