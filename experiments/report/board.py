"""One board of every way of stopping: each at the setting that keeps the same promise.

On one half of the problems `calibration` takes of a detector's settings the most eager that keeps
answers lost, of those that were right, below a rate; the other half says what it spares and loses.
A detector whose promise cannot be proved has no numbers, and a reason.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from experiments.grid.detectors import labels, short
from experiments.grid.identity import digest
from experiments.report.calibration import (
    LOST_ANSWERS,
    Problem,
    Traces,
    choose_setting,
    split,
    traces_by_problem,
)
from experiments.report.names import short_names
from experiments.report.pairs import Pairs, detector_effect, judged, paired, spared
from experiments.report.row import DetectorEffect
from experiments.report.statistics import NOTHING, Bootstrap, Interval
from experiments.store.samples.sample import Sample, is_usable
from lil import Detector


class Group(NamedTuple):
    """What a block of rows is about."""

    model: str
    temperature: float
    penalty: str
    attention: str


class Ladder(NamedTuple):
    """A detector with an action at values of a parameter, the most cautious first."""

    parameter: str
    steps: Sequence[Detector]


class Watched(NamedTuple):
    """A store's samples, as decoded and at every step of these ladders."""

    temperature: float
    samples: Sequence[Sample]
    ladders: Sequence[Ladder]


@dataclass(frozen=True)
class BoardRow:
    """A detector with an action at its proved setting, full attention's null, or hindsight.

    Attributes:
        setting: None where none is proved, and of a null and of hindsight.
        problems, answers: with right answers, on the half that chose; None and 0 of those two.
        lost, high: answers lost there (where none is proved, by the first), and the rate's bound.
        effect: on the other half, with `judged` traces; None where no setting is proved.
        keys, loops, tails: shares spared there, of keys and of wasted tokens (see `Sample`).
        asked_tokens, asked_keys: what its questions took, shares of all without it, taken off.
    """

    detector: str
    setting: str | None = None
    problems: int | None = None
    answers: int = 0
    lost: int = 0
    high: float = 1.0
    effect: DetectorEffect | None = None
    judged: int = 0
    keys: Interval = NOTHING
    loops: Interval = NOTHING
    tails: Interval = NOTHING
    asked_tokens: float = 0.0
    asked_keys: float = 0.0

    @property
    def label(self) -> str:
        """Detector and setting."""
        return " ".join(filter(None, (self.detector, self.setting)))

    @property
    def reason(self) -> str:
        """Why there is no number; empty where there is one."""
        if self.effect is not None:
            return ""
        lost = f" with {self.lost} of {self.answers} answers lost" if self.lost else ""
        return f"no setting: {self.problems} problems{lost} prove nothing below {self.high:.2%}"


Board = Mapping[Group, Sequence[BoardRow]]


def subject(group: Group, board: Board) -> str:
    """The words for a group."""
    model = short_names(other.model for other in board)[group.model]
    penalty = [] if group.penalty == "none" else [f"penalty {group.penalty}"]
    return ", ".join([model, f"temperature {group.temperature:g}", *penalty, group.attention])


def make_board(stores: Sequence[Watched], rate: float, seed: int) -> Board:
    """The rows of every model, temperature, penalty and kind of attention; nulls come last."""
    bootstrap = Bootstrap(seed)
    names: dict[str, tuple[str, list[str]]] = {}
    traces: dict[tuple[Group, str], dict[Problem, list[Any]]] = defaultdict(dict)
    nulls: dict[Group, Pairs] = {}
    rights: dict[Group, Pairs] = {}
    for store in stores:
        called = iter(labels([step for ladder in store.ladders for step in ladder.steps]))
        firsts = labels([ladder.steps[0] for ladder in store.ladders])
        groups = _groups(store)
        for first, (parameter, steps) in zip(firsts, store.ladders, strict=True):
            key, action = digest([step.identity() for step in steps]), steps[0].action
            name = first if action.ends else f"{first}:{action.name}"
            names[key] = name, [f"{parameter}={short(getattr(s, parameter))}" for s in steps]
            own = list(itertools.islice(called, len(steps)))
            for group, samples in groups.items():
                known = traces[group, key]
                part = [s for s in samples if s.action in ("none", action.name)]
                for problem, new in traces_by_problem(part, own).items():
                    known[problem] = _added(known.get(problem, []), new)
        for group, samples in groups.items():
            nulls[group] = _added(nulls.get(group, []), _null_pairs(samples))
            rights[group] = _added(rights.get(group, []), _right_pairs(samples))
    board: dict[Group, list[BoardRow]] = {group: [] for group in nulls}
    for (group, key), of_key in traces.items():
        board[group] += _row(*names[key], of_key, rate, seed, bootstrap)
    for group, pairs in nulls.items():
        for name, of in (("first right answer", rights[group]), ("null", pairs)):
            board[group] += [_measured(BoardRow(name), of, bootstrap)] if of else []
    return board


def _groups(store: Watched) -> Mapping[Group, list[Sample]]:
    groups: dict[Group, list[Sample]] = defaultdict(list)
    for s in store.samples:
        if s.role != "control":
            kind = "full" if s.backend == "full" or s.role == "null" else "sparse"
            groups[Group(s.model, store.temperature, s.penalty, f"{kind} attention")].append(s)
    return groups


def _null_pairs(samples: Sequence[Sample]) -> Pairs:
    """Full attention drawn again next to itself; without such draws every second sample."""
    plain = [sample for sample in samples if sample.detector == "none"]
    full = {s.pair: s for s in plain if s.backend == "full" and s.penalty == "none"}
    odd = (sample for sample in full.values() if sample.sample_index % 2)
    again = [sample for sample in plain if sample.role == "null"]
    return paired(again or [replace(s, sample_index=s.sample_index - 1) for s in odd], full)


def _right_pairs(samples: Sequence[Sample]) -> Pairs:
    """Texts cut where a trial answer is first right, which nobody knows, next to the whole ones."""
    known = (s for s in samples if s.detector == "none" and s.first_right is not None)
    return [(replace(s, tokens=s.first_right, keys_read=None), s) for s in known]


def _added(known: list[Any], new: Sequence[Any]) -> list[Any]:
    """Pairs of two stores; one whose first sample is the same run in both counts once."""
    seen = {pair[0].record for pair in known}
    return known + [pair for pair in new if pair[0].record not in seen]


def _row(
    name: str, steps: Sequence[str], traces: Traces, rate: float, seed: int, bootstrap: Bootstrap
) -> Iterator[BoardRow]:
    """A ladder's row; none where what follows its verdicts was not decoded."""
    every = [stopped for pairs in traces.values() for _, stopped in pairs]
    # What follows a verdict may be there for some of the steps, which are then those to choose of.
    there = [at for at in range(len(steps)) if all(is_usable(part[at]) for part in every)]
    if not (every and there):
        return
    traces = {
        problem: [(plain, [stopped[at] for at in there]) for plain, stopped in pairs]
        for problem, pairs in traces.items()
    }
    first, second = split(traces, steps, seed, LOST_ANSWERS)
    at = choose_setting(first.clean, len(there), rate)
    on = first.false_stops(at or 0)
    row = BoardRow(name, None, on.problems, on.traces, on.stopped, on.high)
    if at is not None:
        pairs = [(stopped[at], plain) for plain, stopped in second.all]
        row = _measured(replace(row, setting=steps[there[at]]), pairs, bootstrap)
    yield row


def _measured(row: BoardRow, pairs: Pairs, bootstrap: Bootstrap) -> BoardRow:
    def asked(name: str, of: str) -> float:
        whole = math.fsum(getattr(plain, of) or 0 for _, plain in pairs)
        return math.fsum(getattr(left, name) for left, _ in pairs) / whole if whole else 0.0

    return replace(
        row,
        effect=detector_effect(pairs, bootstrap, pooled=True),
        judged=len(judged(pairs)),
        keys=spared(pairs, lambda sample: sample.keys_read, bootstrap),
        loops=spared(pairs, lambda sample: sample.wasted_loop, bootstrap),
        tails=spared(pairs, lambda sample: sample.wasted_tail, bootstrap),
        asked_tokens=asked("asked_tokens", "paid_tokens"),
        asked_keys=asked("asked_keys", "keys_read"),
    )
