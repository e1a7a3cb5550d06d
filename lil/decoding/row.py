"""One sequence on its way through the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lil.curves import Point
from lil.decoding.ledger import Totals
from lil.decoding.request import Request
from lil.detectors import Detector
from lil.meter import Meter
from lil.penalties import Penalty
from lil.sampling import row_stream


class Mark(NamedTuple):
    """Cost measured at a check, the row's own decode steps alone."""

    tokens: int
    keys_read: float
    cache_bytes: float
    seconds: float
    read_sum: float
    dense_read_sum: float


class Row:
    """Tokens, detectors, penalties, random stream and measurements of one sequence.

    Args:
        request: what to generate.
        place: its row in the batch.
        table: bytes of each token id.
        eos: ids that end a sequence.
        detectors, penalties: templates, cloned here.
        seed: of the run.
        check_every: generated tokens between checks.
        device: where the penalties work.
    """

    def __init__(
        self,
        request: Request,
        place: int,
        *,
        table: Sequence[bytes],
        eos: frozenset[int],
        detectors: Sequence[Detector],
        penalties: Sequence[Penalty],
        seed: int,
        check_every: int,
        device: torch.device,
    ) -> None:
        self.request = request
        self.place = place
        self.new_ids: list[int] = []
        self.pieces: list[bytes] = []
        self.finish: str | None = None
        self.evidence: Mapping[str, object] | None = None
        self.prefill_sec = 0.0
        self.started_at = 0.0  # the batch's decode seconds when this row joined
        self._table, self._eos, self._check_every = table, eos, check_every
        self.prompt_bytes = b"".join(table[i] for i in request.prompt_ids)
        self._detectors = [detector.clone() for detector in detectors]
        for detector in self._detectors:
            detector.start(prompt=self.prompt_bytes)
        self._stream = row_stream(seed, request.item_id, request.sample_index)
        self._penalties = [penalty.clone() for penalty in penalties]
        self.has_penalties = bool(self._penalties)
        self._history = torch.tensor([request.prompt_ids], dtype=torch.int64, device=device)
        self._width = self._history.shape[1]
        self._meter = Meter()
        self.curve: list[Point] = []
        self.marks: list[Mark] = []
        self.totals: Totals | None = None
        self._force(request.forced)
        self.reused = len(self.new_ids)
        # What must be read before the next token can be chosen; a row's last token never is.
        read = self.new_ids if self.finish is None else self.new_ids[:-1]
        self.prefix = (*request.prompt_ids, *read)

    def _force(self, tokens: Sequence[int]) -> None:
        """Take known tokens as if they had just been chosen: everything that watches sees them."""
        for token in tokens:
            if self.finish is not None:
                return
            self.draw()
            if self.has_penalties:
                self.penalise(torch.zeros(1, len(self._table), device=self._history.device))
            self.append(token)
            self.judge()
            if self.check_due:
                self._measure_text()

    @property
    def check_due(self) -> bool:
        return self.finish is not None or len(self.new_ids) % self._check_every == 0

    def draw(self) -> float:
        """The uniform number that decides the next token."""
        return self._stream.random()

    def penalise(self, scores: Tensor) -> Tensor:
        """Scores (1, V) of the next token after this row's own penalties."""
        for penalty in self._penalties:
            scores = penalty(self._history[:, : self._width], scores)
        return scores

    def append(self, token: int) -> None:
        self.new_ids.append(token)
        self.pieces.append(self._table[token])
        if self.has_penalties:
            if self._width == self._history.shape[1]:
                self._history = torch.cat([self._history, torch.zeros_like(self._history)], dim=1)
            self._history[0, self._width] = token
            self._width += 1

    def judge(self) -> None:
        """Whether the newest token ends this row: `eos` first, then the cap, then a verdict."""
        if self.new_ids[-1] in self._eos:
            self.finish = "eos"
        elif len(self.new_ids) >= self.request.cap:
            self.finish = "length"
        else:
            for detector in self._detectors:
                verdict = detector.update(self.pieces[-1:])
                if verdict is not None:
                    self.finish, self.evidence = verdict.detector, verdict.evidence
                    return

    def check(self, totals: Totals, seconds: float) -> None:
        """Note what has been generated and what it cost so far."""
        self._measure_text()
        self.totals = totals
        self.marks.append(
            Mark(
                tokens=len(self.new_ids),
                keys_read=totals.keys_read,
                cache_bytes=totals.bytes_now,
                seconds=seconds,
                read_sum=totals.read_sum,
                dense_read_sum=totals.dense_read_sum,
            )
        )

    def _measure_text(self) -> None:
        """One point of the curve; meters work only here, not at every token."""
        done = (self.curve[-1][0] or 0) if self.curve else 0
        if done == len(self.new_ids):
            return  # a given prefix that already ended the row has been measured
        fresh = self.pieces[done : -1 if self.finish == "eos" else None]
        self._meter.feed(b"".join(fresh))
        self.curve.append((len(self.new_ids), self._meter.fed, self._meter.size()))
