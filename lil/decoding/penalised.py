"""The penalties of a batch: one object each for all of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lil.compression.matching import EMPTY
from lil.decoding.lane import Lane
from lil.penalties import Penalty


class Penalised:
    """What the penalties remember of the rows that are decoded together.

    A step in which every row has one token more than at the last costs a push. Where rows joined,
    left or went back, everything is computed from the rows' tokens, which gives the same numbers.

    Args:
        penalties: applied in this order.
    """

    def __init__(self, penalties: Sequence[Penalty]) -> None:
        # The loop's scores are its own, so nothing needs a copy of them.
        self._penalties = [p.in_place() for p in penalties if not p.neutral]
        self._memories: list[Any] = []
        self._rows: list[tuple[Lane, int, int]] = []

    def __call__(self, rows: Sequence[Lane], newest: Tensor, scores: Tensor) -> Tensor:
        """Scores (B, V) of the rows' next tokens; those given may be written to.

        Args:
            rows: B of them.
            newest: (B,), their newest tokens; not looked at where everything is computed anew.
            scores: (B, V), raw.
        """
        if not self._penalties:
            return scores
        due = [(lane, tokens + 1, dropped) for lane, tokens, dropped in self._rows]
        self._rows = [(row, len(row.new_ids), len(row.dropped)) for row in rows]
        # Lanes have no equality of their own: these are the same ones.
        if self._rows == due:
            for i, penalty in enumerate(self._penalties):
                live = None if penalty.pad_token_id is None else newest != penalty.pad_token_id
                self._memories[i] = penalty.push(self._memories[i], newest, live)
        else:
            self._memories = [
                penalty.begin(_histories(rows, penalty, scores.device), scores.shape[1])
                for penalty in self._penalties
            ]
        for penalty, memory in zip(self._penalties, self._memories, strict=True):
            scores = penalty.apply(memory, scores)
        return scores


def _histories(rows: Sequence[Lane], penalty: Penalty, device: torch.device) -> Tensor:
    """What a penalty looks at, (B, n): right-aligned, with `EMPTY` before short rows."""
    histories = [
        [
            token
            for token in (*(row.prompt_ids if penalty.include_prompt else ()), *row.new_ids)
            if token != penalty.pad_token_id
        ]
        for row in rows
    ]
    most = max(map(len, histories))
    padded = [[EMPTY] * (most - len(history)) + history for history in histories]
    return torch.tensor(padded, dtype=torch.int64, device=device)
