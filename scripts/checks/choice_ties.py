"""Choices of blocks that rounding decides, and whether two runs part because of one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
#: Ways in which choices at a tie are made otherwise, before giving up.
TRIED = 96
#: Of them, those that are read side by side, with the text as it is beside them.
ROWS = 15
TINY = torch.finfo(torch.float64).tiny
#: A call that chooses, and the row of it.
Place = tuple[int, int]
#: The block that is taken instead of the last one chosen at a choice, or None.
Way = Callable[["Choice"], int | None]


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

    @property
    def place(self) -> Place:
        """Where it is made."""
        return self.call, self.row


@dataclass(frozen=True)
class TiedChoices:
    """What choices at a tie have to do with where two runs part.

    Attributes:
        closest: the smallest margin in the common text; None where nothing is chosen.
        count: choices whose margin is up to `CHOICE_TIE`.
        traced: whether the text read again has this run's token as the likeliest, and beside it,
            with one of these choices or all of them made otherwise, the other run's.
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
    choices, (row,) = _read(model, parting)
    closest = min((one.margin for one in choices), default=None)
    ties = [one for one in choices if one.margin <= CHOICE_TIE]
    known = trace and int(row.argmax()) == parting.tokens[0]
    ways = _ways(ties)[:TRIED] if known else []
    traced = any(
        _gives(model, parting, ways[start : start + ROWS]) for start in range(0, len(ways), ROWS)
    )
    return TiedChoices(closest, len(ties), traced)


def _gives(model: Any, parting: Parting, ways: Sequence[Way]) -> bool:
    """Whether the other run's token comes of one of these ways.

    Rows that are read side by side are rounded in another way than one alone, which can part runs
    by itself: the text as it is, read beside the ways, has to have this run's token.
    """
    mine, theirs = parting.tokens
    _, rows = _read(model, parting, [as_it_is, *ways])
    same, *others = (int(row.argmax()) for row in rows)
    return same == mine and theirs in others


def _ways(ties: Sequence[Choice]) -> list[Way]:
    """All choices at a tie otherwise at once, then each by itself, the last first."""

    def alone(place: Place, block: int) -> Way:
        return lambda one: block if one.place == place else None

    def together(which: int) -> Way:
        return lambda one: one.others[which] if one.others else None

    late = sorted(ties, key=lambda one: -one.call)
    each = [alone(one.place, block) for one in late for block in one.others]
    return [together(0), together(-1), *each] if len(ties) > 1 else each


def as_it_is(_choice: Choice) -> None:
    """The way in which `lil.decode` chooses."""


def _read(
    model: Any, parting: Parting, ways: Sequence[Way] = (as_it_is,)
) -> tuple[list[Choice], list[Tensor]]:
    """The choices of the common text in the first way, and the scores behind it in each, (V,).

    Args:
        model, parting: as above.
        ways: in which the text is read, side by side.
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
        rows = len(each) // len(ways)
        for at, (known, mine) in enumerate(zip(each, chosen, strict=True)):
            one = _choice(known, mine, (call, at % rows))
            if one is None:
                continue
            if at < rows:
                found.append(one)
            block = ways[at // rows](one)
            if block is not None:
                mine[known[mine].argmin()] = block
        index = chosen.view(index.shape)
        return worth.gather(-1, index), index

    with mock.patch.object(engine, "top", watched), mock.patch.object(paged, "top", watched):
        read = scores(model, backend_of(parting), [parting] * len(ways), "torch")
    return found, read


def _choice(worth: Tensor, chosen: Tensor, place: Place) -> Choice | None:
    """One choice, of (S,) and (k,); None where less than k + 1 blocks can be chosen."""
    left = worth.double().index_fill(0, chosen, float("-inf"))
    last, out = worth[chosen].min().double(), left.max()
    if not (last.isfinite() and out.isfinite()):
        return None
    size = torch.maximum(last.abs(), out.abs()).clamp(min=TINY)
    others = torch.nonzero((last - left) / size <= CHOICE_TIE).flatten().tolist()
    return Choice(float((last - out) / size), *place, tuple(others))
