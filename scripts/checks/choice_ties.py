"""Choices of blocks that rounding decides, and whether one of them explains where two runs part."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

import torch
from compare_stores import Parting, scores
from torch import Tensor

import attention
from attention.contract import top
from attention.engines import engine
from attention.layers import paged

#: Blocks whose worth is closer than that, as a share of it: some last bits of a float32.
CHOICE_TIE = 1e-6
#: Choices at a tie that are made the other way round, one after another, before giving up.
TRIED = 12
TINY = torch.finfo(torch.float64).tiny


class Choice(NamedTuple):
    """One choice of a method while a text is read.

    Attributes:
        margin: between the worth of the last block chosen and that of the first left out, over the
            larger of both.
        call, row: which it is.
    """

    margin: float
    call: int
    row: int


@dataclass(frozen=True)
class TiedChoices:
    """What choices at a tie have to do with where two runs part.

    Attributes:
        closest: the smallest margin in the common text; None where nothing is chosen.
        count: choices whose margin is up to `CHOICE_TIE`.
        explained: whether with one of them made the other way round, all else as it is, the other
            run's token is the likeliest.
    """

    closest: float | None
    count: int
    explained: bool


def backend_of(parting: Parting) -> attention.Backend:
    """The method under which both runs were decoded."""
    params = dict(parting.cell["backend"])
    return attention.get(params.pop("name"), **params)


def tied_choices(model: Any, parting: Parting) -> TiedChoices:
    """Read the common text again, with torch, and look at every choice of blocks.

    Text that repeats itself has blocks of the same tokens, which can be worth exactly the same.
    """
    choices, _ = _read(model, parting)
    closest = min((one.margin for one in choices), default=None)
    ties = [one for one in choices if one.margin <= CHOICE_TIE]
    # The nearest to the end matter most where many are the same.
    tried = sorted(ties, key=lambda one: (one.margin > 0, -one.call))[:TRIED]
    explained = any(_chosen(model, parting, [one]) == parting.tokens[1] for one in tried)
    return TiedChoices(closest, len(ties), explained)


def _chosen(model: Any, parting: Parting, turned: Collection[Choice]) -> int:
    """The likeliest token where the runs part, with some choices made the other way round."""
    _, row = _read(model, parting, turned)
    return int(row.argmax())


def _read(
    model: Any, parting: Parting, turned: Collection[Choice] = ()
) -> tuple[list[Choice], Tensor]:
    """The choices of the common text, and the scores behind it, (V,)."""
    found: list[Choice] = []
    other = {(one.call, one.row) for one in turned}
    calls = 0

    def watched(worth: Tensor, k: int) -> tuple[Tensor, Tensor]:
        nonlocal calls
        call, calls = calls, calls + 1
        values, index = top(worth, k)
        if worth.shape[-1] <= k:
            return values, index
        each, chosen = worth.reshape(-1, worth.shape[-1]), index.reshape(-1, k).clone()
        for row, (known, mine) in enumerate(zip(each, chosen, strict=True)):
            left = known.index_fill(0, mine, float("-inf"))
            last, out = known[mine].min().double(), left.max().double()
            if not (last.isfinite() and out.isfinite()):
                continue
            size = torch.maximum(last.abs(), out.abs()).clamp(min=TINY)
            found.append(Choice(float((last - out) / size), call, row))
            if (call, row) in other:
                mine[known[mine].argmin()] = left.argmax()
        index = chosen.view(index.shape)
        return worth.gather(-1, index), index

    with mock.patch.object(engine, "top", watched), mock.patch.object(paged, "top", watched):
        (row,) = scores(model, backend_of(parting), [parting], "torch")
    return found, row
