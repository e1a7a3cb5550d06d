"""The checks for authors: shipped backends pass them, and a broken method is named."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from examples import FIRST
from torch import Tensor

import attention
from attention.contract import Dropping, Evicting, Step
from attention.testing import ContractBroken, check
from attention.testing.checks import CHECKS
from tests.sampling import some_slow

#: Checks that controls break on purpose: they weigh or read what a method must not.
BROKEN_ON_PURPOSE = {"noise": ["softmax", "prefill"], "duo": ["counts", "memory"]}


@pytest.mark.parametrize("backend", some_slow(FIRST, {*range(0, len(FIRST), 3)}), ids=str)
def test_every_shipped_method_keeps_the_contract(backend: attention.Backend) -> None:
    assert all(check(backend, skip=BROKEN_ON_PURPOSE.get(backend.name, ())).values())


@dataclass(frozen=True, kw_only=True)
class TooSure(attention.Window):
    exact_until = 20


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(ContractBroken, match="'exact': exact_until = 20, but after token 16"):
        check(TooSure(budget=16), skip=["declared"])
    with pytest.raises(ContractBroken, match="keep_prompt"):
        check(attention.RaaS(budget=16, page=4))
    with pytest.raises(attention.InvalidValue, match="did you mean 'exact'"):
        check(attention.Full(), skip=["exactt"])


class Counted(Evicting):
    """Hooks that keep a number and a tensor where rows do not have them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.steps, self.last = 0, torch.zeros(())

    def counted(self) -> int:
        self.steps += 1
        return self.steps

    def marked(self) -> Tensor:
        position = self.position.data.clone()
        position[position < 0] = position[:, 0, 0].sum()
        return position[:, :, :1]

    def former(self) -> Tensor:
        before, self.last = self.last, self.position.data[:, :, :1] * 1.0
        return before


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        (lambda _, step: step.seen_tokens[:, None, None], "are captured"),
        (lambda _, step: step.longest, r"Ruled .* step.longest, .* \(test_testing.py:\d+\)"),
        (lambda _, step: step.tensor([1]), "step.tensor"),
        (lambda _, step: step.seen_tokens.max().item(), "_local_scalar_dense, which brings"),
        (lambda layer, _: layer.position.data.tolist()[0][0][0], r"tolist\(\)"),
        (lambda _, step: torch.rand(1, device=step.device), "rand, which draws"),
        (lambda layer, _: layer.counted(), "outside `remember`"),
        (lambda layer, _: layer.former(), "outside `remember`"),
        (lambda layer, _: layer.last.add_(1), "outside `remember`"),
        (lambda layer, _: layer.marked(), r"x\[mask\] = "),
    ],
)
def test_what_a_graph_would_repeat_is_named(rule: Callable[..., Any], named: str) -> None:
    class Ruled(Counted):
        def worth(self, S: int, step: Step) -> Tensor:
            return self.position.data[:, :, :S] + 1e-3 * rule(self, step)

    @dataclass(frozen=True, kw_only=True)
    class Backend(Dropping):
        name = "ruled"
        layer_class = Ruled
        budget: int

    report = check(Backend(budget=16), skip=CHECKS.keys() - {"device"})["device"]
    assert re.search(named, report), report
