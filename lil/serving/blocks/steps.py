"""A step of an engine: which tokens are read in full and which are queries of a policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attention.contract import Counts
from lil.serving.blocks.policy import BlockPolicy

#: A prompt that never ends: everything of the request is read in full.
WHOLE = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Queries:
    """The decode queries of a step that read less than everything.

    Attributes:
        token: where each lies among the step's tokens, (N,).
        row: its request's row, (N,).
        seen: tokens it sees, its own included, (N,).
        full: tokens of each row that are read in full, before its queries, (R,).
    """

    token: Counts
    row: Counts
    seen: Counts
    full: Counts

    def __len__(self) -> int:
        return len(self.token)


def queries(policy: BlockPolicy, past: Counts, new: Counts, prompt: Counts) -> Queries:
    """The queries of a step in which each row, R of them, has new tokens.

    A token of the prompt is read in full and a generated one is a decode query, whether it comes
    alone or, after its request was put back, among others: only then are its key and value what
    they were.

    Args:
        policy: what queries read.
        past: tokens before the step, (R,).
        new: tokens in the step, (R,), row after row.
        prompt: tokens of the prompt, (R,); `WHOLE` where a request is read in full.
    """
    row = np.repeat(np.arange(len(new)), new)
    begin = np.cumsum(new) - new
    position = np.arange(len(row)) - begin[row] + past[row]
    sparse = (position >= prompt[row]) & policy.leaves_out(position + 1)
    token = np.flatnonzero(sparse)
    full = new - np.bincount(row[token], minlength=len(new))
    return Queries(token, row[token], position[token] + 1, full)


def in_full_rows(found: Queries, past: Counts) -> tuple[Counts, Counts, Counts]:
    """The step without its queries, which are the last tokens of their rows.

    Args:
        found: the queries.
        past: tokens before the step, (R,).

    Returns:
        Rows with tokens that are read in full, how many, and the tokens that the last of them sees.
    """
    rows = np.flatnonzero(found.full)
    return rows, found.full[rows], past[rows] + found.full[rows]


def table(policy: BlockPolicy, seen: Counts) -> tuple[npt.NDArray[np.int64], int, int]:
    """The blocks that queries read, by their number in the request.

    Args:
        seen: tokens seen by N queries that read less than everything, N at least 1.

    Returns:
        (N, U), rows filled up with their last block; and the first and the number of the columns in
        which the best blocks of the gap belong, where a number stands that means nothing.
    """
    start, end = policy.gap(seen)
    # Blocks before the gap are the same number for all that read less than everything.
    before, best = int(start[0]), policy.best
    column = np.arange(int(policy.blocks_read(seen).max()))
    if policy.window is None:
        ahead, behind = column < before + best, column - before - best
    else:
        column = column - 1
        ahead, behind = (column >= 0) & (column < before), np.maximum(column - before + 1, 0)
    numbers = np.where(ahead, column, end[:, None] + behind)
    last = -(-seen // policy.block) - 1
    return np.minimum(numbers, last[:, None]), before, best
