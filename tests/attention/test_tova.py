"""TOVA: the last query decides, for all heads of a layer."""

from __future__ import annotations

import pytest
import torch
from driving import Bare

import attention


def mean_probability(bare: Bare, held: list[int]) -> torch.Tensor:
    """Of these positions under the last query, over all query heads, (held,)."""
    every = [bare.probabilities(bare.n - 1, held, head) for head in range(bare.Hq)]
    return torch.stack(every).mean(0)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
def test_each_step_drops_the_least_of_all_heads(heads: tuple[int, int]) -> None:
    bare = Bare(attention.TOVA(budget=7), heads)
    bare.feed(4)
    current_lost = 0
    for _ in range(40):
        old = [*bare.kept()[0], bare.n]
        bare.feed()
        assert bare.read() == [old] * bare.Hkv
        if len(old) == 7:
            lost = old[int(mean_probability(bare, old).argmin())]
            old.remove(lost)
            current_lost += lost == bare.n - 1
        assert bare.kept() == [old] * bare.Hkv
    assert current_lost  # the current token is not exempt


@pytest.mark.parametrize("held", [0, 6])
def test_a_prompt_is_cut_by_its_last_query(held: int) -> None:
    """The earlier queries of the prompt have no say, nor has what was held before."""
    bare = Bare(attention.TOVA(budget=7))
    if held:
        bare.feed(held)
    bare.feed(30)
    order = mean_probability(bare, list(range(held + 30))).argsort(descending=True)
    assert bare.kept()[0] == sorted(order[:6].tolist())


@pytest.mark.parametrize("arguments", [{"budget": 1}, {"budget": "8"}])
def test_bad_parameters_are_refused(arguments) -> None:
    with pytest.raises(attention.InvalidValue):
        attention.TOVA(**arguments)
