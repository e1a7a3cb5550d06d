"""The linear layer: its numbers, its file, its training, and how it is measured."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from lil.chopper.classifier import Classifier
from lil.chopper.training import Training


def small(**changes: object) -> Classifier:
    values: dict = {
        "weight": torch.tensor([1.0, -2.0, 0.5]),
        "bias": 0.25,
        "block": -2,
        "model": "tiny",
        "labeller": {"run": 10, "embedder": {"name": "text"}},
        "training": {"epochs": 50, "chunks": 12},
    }
    return Classifier(**(values | changes))


def test_its_numbers_are_those_of_a_linear_layer() -> None:
    states = torch.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 0.0]])
    assert small().logits(states).tolist() == [1.0 - 4.0 + 2.0 + 0.25, 0.25]
    assert small().probability(states[1]) == pytest.approx(1 / (1 + math.exp(-0.25)))
    half = small().probability(states[0].to(torch.bfloat16))
    assert half == small().probability(states[0])  # these numbers are exact in bfloat16


def test_a_file_gives_it_back_and_is_the_same_each_time(tmp_path: Path) -> None:
    saved = small().save(tmp_path / "a.safetensors")
    loaded = Classifier.load(tmp_path / "a.safetensors")
    assert loaded == saved == small()
    assert hash(loaded) == hash(small())
    for field in ("block", "model", "labeller", "training", "bias"):
        assert getattr(loaded, field) == getattr(small(), field)
    assert torch.equal(loaded.weight, small().weight)
    assert loaded.source == saved.source == str(tmp_path / "a.safetensors")
    loaded.save(tmp_path / "b.safetensors")
    files = [(tmp_path / name).read_bytes() for name in ("a.safetensors", "b.safetensors")]
    assert files[0] == files[1]


# ---------------------------------------------------------------- training


def clouds(
    count: int, seed: int = 0, share: float = 0.2, distance: float = 3.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two clouds of states, separated along the first axis; a share of them is salad."""
    draw = torch.Generator().manual_seed(seed)
    labels = (torch.randperm(count, generator=draw) < share * count).long()
    states = torch.randn(count, 6, generator=draw)
    states[:, 0] += distance * (2.0 * labels - 1.0)
    return states, labels, torch.full((count,), 30)


def by_torch(states: torch.Tensor, labels: torch.Tensor) -> torch.nn.Linear:
    """torch's own layer and loss on everything at once, to the optimum."""
    layer = torch.nn.Linear(states.shape[1], 1).double()
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=200, tolerance_grad=1e-10)
    loss = torch.nn.BCEWithLogitsLoss()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(layer(states.double())[:, 0], labels.double())
        value.backward()
        return value

    optimizer.step(closure)
    return layer


def test_it_learns_what_logistic_regression_learns() -> None:
    states, labels, tokens = clouds(600, share=0.5, distance=0.7)  # nothing to draw from
    fitted = Training(lr=0.02, epochs=1200).fit(states, labels, tokens)
    layer = by_torch(states, labels)
    assert torch.allclose(fitted.weight.double(), layer.weight.detach()[0], atol=1e-3)
    assert fitted.bias == pytest.approx(layer.bias.item(), abs=1e-3)


def test_the_same_seed_gives_the_same_weights() -> None:
    data = clouds(300)
    first, again = Training(epochs=3).fit(*data), Training(epochs=3).fit(*data)
    torch.manual_seed(99)  # the global stream is not touched
    before = torch.random.get_rng_state()
    third = Training(epochs=3).fit(*data)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.weight, again.weight)
    assert torch.equal(first.weight, third.weight)
    assert first.bias == again.bias == third.bias
    assert first.facts == again.facts
    assert not torch.equal(first.weight, Training(epochs=3, seed=42).fit(*data).weight)
