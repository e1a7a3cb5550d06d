"""The pattern of `duo`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import attention
from attention.testing.driving import follow, text, tiny_model

DUO = attention.Duo(budget=8, pattern=((0.25, 0.75), (0.75, 0.25)))


def test_the_authors_file_is_its_numbers(tmp_path: Path) -> None:
    file = tmp_path / "full_attention_heads.tsv"
    np.savetxt(file, [[0.25, 0.75], [1.5, -0.5]], delimiter="\t")
    read = attention.Duo(budget=8, pattern=str(file))
    assert read == replace(DUO, pattern=((0.25, 0.75), (1, 0)))
    # As in their code a gate that equals the threshold streams.
    assert replace(read, threshold=0.75).streams.tolist() == [[True, True], [False, True]]
    file.write_text("0.5\tnan\n")
    with pytest.raises(attention.InvalidValue, match="numbers"):
        attention.Duo(budget=8, pattern=str(file))


@torch.no_grad()
def test_heads_of_one_kind_are_that_method() -> None:
    model, outs, sink = tiny_model(), [], attention.Sink(budget=8, sinks=1, positions="absolute")
    zeros, ones = (replace(DUO, pattern=[[x] * 2] * 2) for x in (0, 1))
    for backend in (zeros, sink, ones, attention.Full()):
        with backend.on(model) as cache:
            outs.append(follow(model, cache, [text(20), text(5)], text(2, 12)))
    assert torch.equal(*outs[:2])
    assert torch.equal(*outs[2:])


def test_sinks_follow_from_the_budget_of_each_layer() -> None:
    duo = replace(DUO, budget=[20, 40], sinks=None)
    assert (duo.sinks, duo.of_budget(20).sinks, duo.of_budget(40).sinks) == (6, 4, 8)
