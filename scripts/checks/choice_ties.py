"""Choices of blocks that rounding decides, and whether two runs part because of one of them."""

from __future__ import annotations

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
#: Choices at a tie that are made otherwise, one after another, before giving up.
TRIED = 12
TINY = torch.finfo(torch.float64).tiny


class Choice(NamedTuple):
    """One choice of a method while a text is read.

    Attributes:
        margin: between the worth of the last block chosen and that of the first left out, over the
            larger of both.
        call, row: which it is.
        others: blocks left out that are worth as much as the last one chosen, to `CHOICE_TIE`.
    """

    margin: float
    call: int
    row: int
    others: tuple[int, ...] = ()


@dataclass(frozen=True)
class TiedChoices:
    """What choices at a tie have to do with where two runs part.

    Attributes:
        closest: the smallest margin in the common text; None where nothing is chosen.
        count: choices whose margin is up to `CHOICE_TIE`.
        traced: whether the text read again has this run's token as the likeliest, and with one of
            these choices made otherwise, all else as it is, the other run's.
    """

    closest: float | None
    count: int
    traced: bool


def backend_of(parting: Parting) -> attention.Backend:
    """The method under which both runs were decoded."""
    params = dict(parting.cell["backend"])
    return attention.get(params.pop("name"), **params)


def tied_choices(model: Any, parting: Parting, *, trace: bool = True) -> TiedChoices:
    """Read the common text again, with torch, and look at every choice of blocks.

    Text that repeats itself has blocks of the same tokens, which can be worth exactly the same.

    Args:
        model: of `lil.decode`, in float32.
        parting: where the runs part, and under which method.
        trace: whether choices at a tie are made otherwise.
    """
    choices, row = _read(model, parting)
    mine, theirs = parting.tokens
    closest = min((one.margin for one in choices), default=None)
    ties = [one for one in choices if one.margin <= CHOICE_TIE]
    # Those that are worth the same come first, and of them the last, which have most to say.
    ties = sorted(ties, key=lambda one: (one.margin > 0, -one.call))
    tried = ties[:TRIED] if trace and int(row.argmax()) == mine else []
    traced = any(
        int(_read(model, parting, (one, other))[1].argmax()) == theirs
        for one in tried
        for other in one.others
    )
    return TiedChoices(closest, len(ties), traced)


def _read(
    model: Any, parting: Parting, otherwise: tuple[Choice, int] | None = None
) -> tuple[list[Choice], Tensor]:
    """The choices of the common text, and the scores behind it, (V,).

    Args:
        model, parting: as above.
        otherwise: a choice, and the block that is taken instead of the last one chosen.
    """
    found: list[Choice] = []
    calls = 0

    def watched(worth: Tensor, k: int) -> tuple[Tensor, Tensor]:
        nonlocal calls
        call, calls = calls, calls + 1
        values, index = top(worth, k)
        if worth.shape[-1] <= k:
            return values, index
        each, chosen = worth.reshape(-1, worth.shape[-1]), index.reshape(-1, k).clone()
        for row, (known, mine) in enumerate(zip(each, chosen, strict=True)):
            left = known.double().index_fill(0, mine, float("-inf"))
            last, out = known[mine].min().double(), left.max()
            if not (last.isfinite() and out.isfinite()):
                continue
            size = torch.maximum(last.abs(), out.abs()).clamp(min=TINY)
            others = torch.nonzero((last - left) / size <= CHOICE_TIE).flatten().tolist()
            found.append(Choice(float((last - out) / size), call, row, tuple(others)))
            if otherwise is not None and (call, row) == otherwise[0][1:3]:
                mine[known[mine].argmin()] = otherwise[1]
        index = chosen.view(index.shape)
        return worth.gather(-1, index), index

    with mock.patch.object(engine, "top", watched), mock.patch.object(paged, "top", watched):
        (row,) = scores(model, backend_of(parting), [parting], "torch")
    return found, row
