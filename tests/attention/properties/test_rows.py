"""A row of a ragged batch is that row alone, at any place and whatever becomes of the others.

`RowStats` and positions are part of what a row is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from hypothesis import strategies as st

from attention.patching.stats import RowStats
from properties.backends import METHODS
from properties.cases import Case, cases, each, of
from properties.feeding import Session, session, text
from properties.holding import holds


@dataclass(frozen=True)
class Replaced:
    """A case whose rows `gone` are, after its steps, replaced by the rows of a second one."""

    case: Case
    gone: tuple[int, ...]
    newcomers: Case
    more: int
    row: int  # the one that is looked at


@st.composite
def replaced(draw: Callable[..., Any], method: str) -> Replaced:
    case = draw(of(method, steps=20))
    gone = draw(st.lists(st.integers(0, case.rows - 1), min_size=1, unique=True))
    same = {"backend": st.just(case.backend), "shape": st.just(case.shape)}
    other = draw(cases(**same, rows=len(gone), least_rows=len(gone), steps=3))
    more = draw(st.integers(1, 15))
    return Replaced(case, tuple(gone), other, more, draw(st.integers(0, case.rows - 1)))


def alone(s: Session, row: int, case: Case, more: int) -> tuple[list[torch.Tensor], Session]:
    """A row of a case by itself, in the same chunks, and some tokens more."""
    by_itself = s.new([case.texts(more)[row]])
    counts = [counts[row] for counts in case.whole if counts[row]]
    return [by_itself.feed([n])[0] for n in (*counts, *[1] * more)], by_itself


def same(left: Session, row: int, other: Session, other_row: int) -> None:
    """Whether two rows keep, read and report the same."""
    assert left.cache.seen[row] == other.cache.seen[other_row]
    for layer in range(left.shape.layers):
        assert left.kept(layer)[row] == other.kept(layer)[other_row]
        assert left.read(layer)[row] == other.read(layer)[other_row]
    ours, theirs_positions = left.cache.row_stats(), other.cache.row_stats()
    for field in fields(RowStats):
        a, b = (getattr(x, field.name) for x in (ours, theirs_positions))
        assert (a is None) == (b is None)
        if a is not None:
            assert abs(a[row] - b[other_row]) <= 1e-12, field.name


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat(list(parts), dim=1)


@holds(1, *each(METHODS, replaced))
def test_a_row_is_that_row_alone(how: Replaced) -> None:
    """Contract 8: ragged left-padded row = row alone, to 1e-9, also with rows replaced midway."""
    case, row = how.case, how.row
    with session(case.backend, case.texts(how.more)) as s:
        before = [s.feed(counts)[row] for counts in case.whole]
        want, by_itself = alone(s, row, case, 0)
        assert (joined(before) - joined(want)).abs().max() <= 1e-9
        same(s, row, by_itself, 0)
        fresh = s.new(how.newcomers.texts(how.more))
        for counts in how.newcomers.whole:
            fresh.feed(counts)
        s.replace(how.gone, fresh, range(len(how.gone)))
        after = [s.feed()[row] for _ in range(how.more)]
        if row in how.gone:
            want, by_itself = alone(s, how.gone.index(row), how.newcomers, how.more)
        else:
            want, by_itself = alone(s, row, case, how.more)
        assert (joined(after) - joined(want[-how.more :])).abs().max() <= 1e-9
        same(s, row, by_itself, 0)


@dataclass(frozen=True)
class TakenBack:
    """A case in which some rows go on in another text and are then taken back.

    The other rows go on in their own text meanwhile.
    """

    case: Case
    gone: tuple[int, ...]
    tail: int
    more: int
    rewinds: bool  # where that is exact; otherwise from a snapshot
    row: int  # the one that is looked at


@st.composite
def taken_back(draw: Callable[..., Any], method: str) -> TakenBack:
    case = draw(of(method, steps=20))
    rows = st.integers(0, case.rows - 1)
    gone = draw(st.lists(rows, min_size=1, unique=True))
    tail, more = draw(st.integers(1, 25)), draw(st.integers(1, 15))
    return TakenBack(case, tuple(gone), tail, more, draw(st.booleans()), draw(rows))


@holds(1, *each(METHODS, taken_back))
def test_a_row_taken_back_never_produced_the_tail(how: TakenBack) -> None:
    """A row restored or rewound = that row alone without the tail, to 1e-9, and so are others."""
    case, row, gone = how.case, how.row, list(how.gone)
    with session(case.backend, case.texts(how.tail + how.more)) as s:
        for counts in case.whole:
            s.feed(counts)
        texts, at = list(s.texts), list(s.at)
        snapshot = s.cache.clone(gone)
        for r in gone:
            s.texts[r] = text(case.shape, at[r] + how.tail, case.seed + 1000 + r, case.reveal)
        for _ in range(how.tail):
            s.feed()
        if how.rewinds and s.cache.rewindable:
            for r in gone:
                s.cache.rewind(r, at[r])
        else:
            s.cache.replace_rows(gone, snapshot)
        for r in gone:
            s.texts[r], s.at[r] = texts[r], at[r]
        s.unpad()
        after = [s.feed()[row] for _ in range(how.more)]
        fed = how.more if row in gone else how.tail + how.more
        want, by_itself = alone(s, row, case, fed)
        assert (joined(after) - joined(want[-how.more :])).abs().max() <= 1e-9
        same(s, row, by_itself, 0)
