"""The pattern of `duo`: from a file, for a model, and in the order of its heads."""

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
    file.write_text("0.5\tnan\n")
    with pytest.raises(attention.InvalidValue, match="numbers"):
        attention.Duo(budget=8, pattern=str(file))


@pytest.mark.parametrize("pattern", [((1, 0),), ((1, 0, 1), (0, 1, 0))])
def test_a_pattern_of_another_model_is_refused_before_it_runs(pattern: object) -> None:
    duo = replace(DUO, pattern=pattern)
    with pytest.raises(attention.InvalidValue, match=r"pattern = .*2 rows"), duo.on(tiny_model()):
        pass


@pytest.mark.parametrize(
    ("gates", "other"),
    [(0.0, attention.Sink(budget=8, sinks=1, positions="absolute")), (1.0, attention.Full())],
)
@torch.no_grad()
def test_heads_of_one_kind_are_that_method(gates: float, other: attention.Backend) -> None:
    model, prompts = tiny_model(), [text(20), text(5)]
    duo = replace(DUO, pattern=[[gates] * 2] * 2)
    outs = []
    for backend in (duo, other):
        with backend.on(model) as cache:
            outs.append(follow(model, cache, prompts, text(2, 12)))
    assert torch.equal(*outs)
