"""One sequence on its way through the batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attention import AttentionCache
from attention.errors import InvalidValue
from lil.actions import Action
from lil.compression.curves import Point
from lil.compression.meter import Meter
from lil.decoding.ledger import Totals
from lil.decoding.request import Request
from lil.decoding.sampling import row_stream
from lil.decoding.watch import Watch
from lil.detectors import Detector, Verdict
from lil.hidden_states import HiddenStates
from lil.penalties import Penalty


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
        detectors, probes, penalties: templates, cloned here.
        cues: token ids of each cue.
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
        probes: Sequence[Detector],
        penalties: Sequence[Penalty],
        cues: Mapping[str, Sequence[int]],
        seed: int,
        check_every: int,
        device: torch.device,
    ) -> None:
        self.request = request
        self.place = place
        self.new_ids: list[int] = []
        self.pieces: list[bytes] = []
        self.dropped: list[int] = []  # decoded, then chopped off
        self.finish: str | None = None
        self.evidence: Mapping[str, object] | None = None
        self.verdict: tuple[Verdict, Action] | None = None  # to be acted upon
        self.acted: dict[str, object] | None = None
        self.snapshots: dict[int, AttentionCache] = {}  # by generated tokens
        self.prefill_sec = 0.0
        self.started_at = 0.0  # the batch's decode seconds when this row joined
        self._table, self._eos, self._check_every = table, eos, check_every
        self._cues = cues
        self._given: deque[int] = deque()  # tokens that come next, whatever is sampled
        self._limit: int | None = None  # most tokens of the output, after an action
        self.prompt_bytes = b"".join(table[i] for i in request.prompt_ids)
        self._watch = Watch(detectors, probes, self.prompt_bytes, given=bool(request.forced))
        self._stream = row_stream(seed, request.item_id, request.sample_index)
        self._templates = penalties
        self.has_penalties = bool(penalties)
        self._history = torch.tensor([request.prompt_ids], dtype=torch.int64, device=device)
        self._begin_penalties()
        self._begin_meter()
        self.marks: list[Mark] = []
        self.totals: Totals | None = None
        self._force(request.forced)
        self.reused = len(self.new_ids)
        if self.reused:
            self._watch.resume(self.pieces, request.signals)
        # What must be read before the next token can be chosen; a row's last token never is.
        read = self.new_ids if self.finish is None else self.new_ids[:-1]
        self.prefix = (*request.prompt_ids, *read)

    def _begin_penalties(self) -> None:
        # The loop's scores are its own, so nothing needs a copy of them.
        self._penalties = [
            penalty.in_place() if isinstance(penalty, Penalty) else penalty.clone()
            for penalty in self._templates
        ]
        self._width = len(self.request.prompt_ids)

    def _begin_meter(self) -> None:
        self._meter = Meter()
        self.curve: list[Point] = []

    def _force(self, tokens: Sequence[int]) -> None:
        """Take known tokens as if they had just been chosen: everything that watches sees them."""
        for token in tokens:
            if self.finish is not None:
                return
            self.draw()
            if self.has_penalties:
                self._penalise_nothing()
            self.append(token)
            self.judge()
            if self.check_due:
                self._measure_text()

    @property
    def decoded(self) -> int:
        """Tokens generated, those that were dropped again among them."""
        return len(self.new_ids) + len(self.dropped)

    @property
    def check_due(self) -> bool:
        return self.finish is not None or len(self.new_ids) % self._check_every == 0

    @property
    def signals(self) -> dict[str, tuple[tuple[int, float], ...]]:
        """What readers made of the tokens kept."""
        return self._watch.signals(len(self.new_ids))

    def draw(self) -> float:
        """The uniform number that decides the next token."""
        return self._stream.random()

    def see(self, states: HiddenStates, place: int) -> None:
        """Hidden states of the tokens just read; `place` is this row's."""
        self._watch.see(states, place)

    def penalise(self, scores: Tensor) -> Tensor:
        """Scores (1, V) of the next token after this row's own penalties; it may write to them."""
        for penalty in self._penalties:
            scores = penalty(self._history[:, : self._width], scores)
        return scores

    def _penalise_nothing(self) -> None:
        """Let penalties see the history where no scores wait for them."""
        self.penalise(torch.zeros(1, len(self._table), device=self._history.device))

    def take(self, sampled: int) -> int:
        """The next token: a given one if there is any, else the sampled one; it is appended."""
        token = self._given.popleft() if self._given else sampled
        self.append(token)
        return token

    def take_given(self) -> None:
        """The next token, a given one, where no scores wait for it."""
        if self.has_penalties:
            self._penalise_nothing()
        self.append(self._given.popleft())

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
        elif self.decoded >= self.request.cap or len(self.new_ids) == self._limit:
            self.finish = "length"
        else:
            found = self._watch.judge(self.pieces[-1])
            if found is not None:
                self._conclude(*found)

    def _conclude(self, verdict: Verdict, action: Action) -> None:
        """End here, or leave it to the loop to act: what the model holds may have to change."""
        cue, _ = action.gives
        answering = (
            cue and not action.rewinds and cue.encode() in b"".join(self.pieces[: verdict.token])
        )
        if action.ends or answering:
            self.finish, self.evidence = verdict.detector, verdict.evidence
            self._watch.off(verdict.token)
            self.drop(verdict.token)
        else:
            self.verdict = verdict, action

    # Acting on a verdict

    def returns(self) -> set[int]:
        """Numbers of generated tokens that a coming verdict may go back to."""
        return self._watch.returns()

    def snapshot(self, tokens: int) -> AttentionCache:
        """The state of so many tokens.

        Raises:
            RuntimeError: the detector did not say that it may go back there.
        """
        if tokens not in self.snapshots:
            assert self.verdict is not None
            raise RuntimeError(
                f"{self.verdict[0].detector} goes back to token {tokens}, which its `returns` did "
                "not name while it was the present one"
            )
        return self.snapshots[tokens]

    def cut(self) -> int:
        """How many tokens stay when the verdict is acted upon.

        Raises:
            InvalidValue: an action that goes back, and a verdict without an anchor.
            RuntimeError: the verdict names a token that is not there.
        """
        kept = self._cut()
        if not 0 <= kept <= len(self.new_ids):
            assert self.verdict is not None
            raise RuntimeError(
                f"{self.verdict[0].detector} goes back to token {kept} of {len(self.new_ids)}"
            )
        return kept

    def _cut(self) -> int:
        assert self.verdict is not None
        verdict, action = self.verdict
        if not action.rewinds:
            # Without a cue something must be left to go on from: the first token, which was chosen
            # when the prompt had been read and is the same in every run.
            return verdict.token if action.gives[0] else max(verdict.token, 1)
        if verdict.anchor is None:
            allowed = f"an action that goes on from there: {verdict.detector} names no anchor"
            raise InvalidValue("on_stop", action.name, allowed)
        return verdict.anchor

    def act(self) -> Action:
        """Cut the output, line up the cue, and note what was done; the model's state is not ours.

        Returns:
            The action.
        """
        assert self.verdict is not None
        (verdict, action), kept = self.verdict, self.cut()
        cue, tokens = action.gives
        self.verdict = None
        self.snapshots.clear()
        self._watch.off(kept)
        step = len(self.new_ids)
        self.drop(kept)
        self._given.extend(self._cues[cue] if cue else ())
        if tokens is not None:
            self._limit = kept + len(self._given) + tokens
        self.acted = {
            **action.to_dict(),
            "detector": verdict.detector,
            "step": step,
            "kept": kept,
            "dropped": step - kept,
            "cue_tokens": len(self._given),
            "evidence": dict(verdict.evidence),
        }
        return action

    def drop(self, kept: int) -> None:
        """Forget all tokens but the first `kept`; what they cost stays."""
        if kept == len(self.new_ids):
            return
        self.dropped += self.new_ids[kept:]
        del self.new_ids[kept:], self.pieces[kept:]
        self.marks = [mark for mark in self.marks if mark.tokens <= kept]
        curve = [point for point in self.curve if (point[0] or 0) <= kept]
        self._begin_meter()
        done = 0
        for tokens, *_ in curve:
            self._meter.feed(b"".join(self.pieces[done : tokens or 0]))
            done = tokens or 0
        self.curve = curve
        self._begin_penalties()
        if self.has_penalties and self.finish is None:
            # As they saw it the first time: the prompt, then a token at a time.
            for _ in range(kept):
                self._penalise_nothing()
                self._width += 1

    # Measuring

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
