"""What engines are asked: shapes, lengths and tables that are hard in some way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HEAD_SIZES = (7, 64, 80, 96, 128, 256)
GROUPS = (1, 4, 7, 8, 16)
PAGES = (1, 16, 32, 128)


@dataclass(frozen=True)
class Slots:
    """One query over the first slots of its row.

    Attributes:
        lengths: slots of each row, (B,).
        H, M, D: sets of a row, queries that share one, head size.
        sinks: whether there are logits without a value.
        scale: factor of queries beyond 1 / sqrt(D); only float32 can tell large logits apart.
    """

    lengths: tuple[int, ...]
    H: int
    M: int
    D: int
    sinks: bool = False
    scale: float = 1.0


@dataclass(frozen=True)
class Pages:
    """One query over chosen pages.

    Attributes:
        page, U: slots of a page, pages of a set.
        held: slots to read of each page: "some" of 0 to all; "last", one token of the last page
            alone; "ragged", sets from none to all of their pages, all but the last one whole.
        B, H, Hkv, M, D: rows, sets of a row, KV heads, queries that share a set, head size.
        shared: one table for all sets of all rows.
    """

    page: int
    U: int
    held: str
    H: int
    Hkv: int
    M: int
    D: int
    B: int = 2
    sinks: bool = False
    shared: bool = False
    scale: float = 1.0


Case = Slots | Pages


def cases(quick: bool = False, device: str = "cpu") -> list[Case]:
    """All, or about one in six; long ones where a GPU computes them."""
    every = [*_slots(), *_pages()]
    chosen = every[::6] if quick else every
    return chosen + (_long() if device == "cuda" else [])


def _slots() -> Iterator[Case]:
    for i, (D, step) in enumerate(product(HEAD_SIZES, (0, 2))):
        # One token, and one to either side of what is looked at at once, whatever that is; a row of
        # one token has splits with nothing in them.
        edge, M = (16, 32, 64, 128)[i % 4], GROUPS[(i + step) % len(GROUPS)]
        yield Slots((edge + 1, 1, edge - 1, 2 * edge + 5), 1, M, D, sinks=i % 3 == 0)
    yield Slots((1,), 1, 1, 1)
    yield Slots((1000, 70), 2, 4, 64, sinks=True)
    yield Slots((70, 9), 2, 20, 16)
    yield Slots((70, 9), 1, 71, 16, sinks=True)  # more queries than a program takes
    yield Slots((40, 129), 2, 3, 32, scale=100.0)


def _pages() -> Iterator[Case]:
    kinds, rows_and_sets = ("some", "last", "ragged"), ((2, 1), (1, 2))
    for i, (page, M) in enumerate(product(PAGES, GROUPS)):
        D, U = (7, 64, 80, 128)[(i + i // 4) % 4], max(3, 150 // page)
        B, H = rows_and_sets[i % 2]
        yield Pages(page, U, kinds[i % 3], H, H, M, D, B, sinks=i % 4 == 0, shared=i % 5 == 0)
    for page, held in product((3, 16, 17), kinds):  # a set for each query head
        yield Pages(page, 9, held, 4, 2, 1, 64, sinks=page == 17)
    yield Pages(16, 5, "some", 1, 1, 3, 32, scale=100.0)
    yield Pages(1, 700, "some", 1, 1, 4, 64, B=1)


def _long() -> list[Case]:
    pages: list[Case] = [
        Slots((20_000, 1, 9_999, 16_384), 2, 4, 128, sinks=s) for s in (False, True)
    ]
    pages += [Pages(page, 4096 // page, "some", 4, 4, 4, 128, B=3) for page in PAGES]
    return pages
