"""Methods as users write them: their hooks are captured between kernels, or named."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attention.contract import Choice, Compressing, Dropping, Evicting, Selecting
from attention.patching.decode_step import NotCompiled
from attention.testing.driving import step, text
from tests.attention.test_gpu import _interpreter, captured, pytestmark
from tests.documents import ROOT, files

__all__ = ["_interpreter", "pytestmark"]


class FadingLayer(Evicting):
    """What a slot got, ever less of it; the memory is bound anew."""

    def __init__(self, geometry: Any, backend: Any) -> None:
        super().__init__(geometry, backend)
        self.score = self.remember("score", (geometry.G,), dtype=geometry.wide, fill=0.01)

    def learn(self, mass: Tensor, step: Any) -> None:
        got = torch.zeros_like(self.score.data)
        got[:, :, : mass.shape[-1]] = mass.transpose(2, 3)
        self.score.data = 0.8 * self.score.data + got

    def worth(self, S: int, step: Any) -> Tensor:
        self.best = self.score.data.amax(-1)
        return self.best[:, :, :S]

    def newest(self, prompt: Any) -> Any:
        return np.full_like(prompt, 3)


class SummedLayer(Compressing):
    """What a token got since it came."""

    def __init__(self, geometry: Any, backend: Any) -> None:
        super().__init__(geometry, backend, observers=1)
        self.score = self.remember("score", dtype=geometry.wide)

    def learn(self, probs: Tensor, step: Any) -> None:
        self.score.data[:, :, : probs.shape[-1]] += probs.sum(2) / step.seen_tokens[:, None, None]

    def rank(self, k: Tensor, q: Tensor, rows: Tensor) -> Tensor:
        return self.score.data[rows, :, : k.shape[2]] + 1e-3 * (k @ q[:, :, 0].mT)[..., 0]


class HostLayer(Selecting):
    """The newest tokens, whose numbers are the host's."""

    def choose(self, q: Tensor, step: Any) -> Choice:
        pages = np.maximum(step.seen[:, None] - np.arange(self.quota) - 1, 0)
        return Choice(step.tensor(pages)[:, None], step.tensor(pages >= 0)[:, None])


def method(kind: type, **parameters: Any) -> Any:
    """A backend of a layer's class."""

    @dataclass(frozen=True, kw_only=True)
    class Mine(Dropping):
        name = "mine"
        least_budget = 2
        layer_class = kind
        budget: int

    return Mine(**parameters)


CASES = {
    "kept mass": lambda _: method(FadingLayer, budget=16),
    "a prompt stays": lambda _: method(FadingLayer, budget=40, keep_prompt=True),
    "cuts": lambda _: method(SummedLayer, budget=17),
    # In the first layer keys of equal tokens are as long, up to rounding.
    "tutorial evicts": lambda page: page("l2norm").L2Norm(budget=16, dense_layers=1),
    "tutorial scores": lambda page: page("moba").MoBA(budget=16, page=4),
    "tutorial chooses": lambda page: page("ends").Ends(budget=16, page=4),
}


@pytest.mark.parametrize(
    "case", [next(iter(CASES)), *(pytest.param(x, marks=pytest.mark.slow) for x in [*CASES][1:])]
)
def test_hooks_are_captured(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """48 tokens of rows of other lengths, which leave and come."""
    for name, code in files(ROOT / "docs" / "write_a_method.md").items():
        (tmp_path / name).write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    backend = CASES[case](importlib.import_module)
    with captured(backend, layers=1 + backend.dense_layers) as both:
        both.cache.session.room = 4, 256
        both.decode(20)
        both.leave([0, 2])
        both.arrive([22])
        both.decode(14)
        both.arrive([5], [0])
        both.decode(14)
        assert sum(piece.replays for piece in both.step.graphs.pieces) >= 48


def test_a_hook_that_asks_for_a_host_number_runs_as_it_is() -> None:
    with captured(method(HostLayer, budget=6), layers=2) as both:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for i in range(4):
                caches = zip(both.models, (both.plain, both.cache), strict=True)
                logits = [step(model, cache, text(3, seed=i)) for model, cache in caches]
                torch.testing.assert_close(*logits)
        reason = both.cache.refusal
        named = [str(w.message) for w in caught if "mine" in str(w.message)]
        assert named == [f"steps of mine run operation by operation: {reason}"]
        with pytest.raises(NotCompiled, match=r"HostLayer .*step.seen, .* \(test_hooks.py:\d+\)"):
            both.decode(1)
