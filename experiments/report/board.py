"""One board of every way of stopping: each at the setting that keeps one promise.

A detector with an action has settings from cautious to eager. On one half of the problems
`calibration` takes the most eager one that keeps answers lost, of those that were right, below the
same rate for all; the other half says what it spares and loses there. A detector whose promise
cannot be proved has no numbers, and a reason.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from experiments.report.calibration import (
    LOST_ANSWERS,
    Problem,
    Split,
    Traces,
    choose_setting,
    split,
    traces_by_problem,
)
from experiments.report.names import short_names
from experiments.report.pairs import Pairs, detector_effect, judged, paired, problem_of, spared
from experiments.report.row import DetectorEffect
from experiments.report.statistics import Bootstrap, Interval
from experiments.store.samples.sample import Sample, is_usable

#: A tuple whose first sample tells the run.
T = TypeVar("T", bound=tuple[Sample, Any])


class Group(NamedTuple):
    """What a block of rows is about."""

    model: str
    temperature: float
    penalty: str
    attention: str


class Ladder(NamedTuple):
    """A detector with an action, and what tables and samples call its steps, cautious ones first.

    The same `key` is the same ladder.
    """

    key: str
    name: str
    action: str
    steps: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Effect:
    """What stopping changes of traces on which nothing was chosen; intervals resample problems.

    Attributes:
        judged: traces whose answers are known.
        stopped: tokens spared are those after what the detector asks for, as are keys.
        loops, tails: share of the wasted tokens that is spared; see `Sample`.
        asked_tokens, asked_keys: what it asks of the model, a share of all without it.
    """

    problems: int
    judged: int
    stopped: DetectorEffect
    keys: Interval
    loops: Interval
    tails: Interval
    asked_tokens: float | None
    asked_keys: float | None


@dataclass(frozen=True)
class BoardRow:
    """A detector with an action at the setting that was proved, or full attention's null.

    Attributes:
        setting: None where none is proved, and of a null.
        problems, answers: with right answers, on the half that chose; None of a null.
        lost, high: answers that it loses there, or the most cautious setting where none is proved,
            and the 95% upper bound of their rate.
        effect: on the other half; None where no setting is proved.
    """

    detector: str
    setting: str | None = None
    problems: int | None = None
    answers: int = 0
    lost: int = 0
    high: float = 1.0
    effect: Effect | None = None

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
        many = f"problem{lost} proves" if self.problems == 1 else f"problems{lost} prove"
        return f"no setting: {self.problems} {many} nothing below {self.high:.2%}"


Board = Mapping[Group, Sequence[BoardRow]]


def subject(group: Group, board: Board) -> str:
    """The words for a group."""
    model = short_names(other.model for other in board)[group.model]
    penalty = [] if group.penalty == "none" else [f"penalty {group.penalty}"]
    return ", ".join([model, f"temperature {group.temperature:g}", *penalty, group.attention])


class Watched(NamedTuple):
    """A store's samples, as decoded and at every step of these ladders."""

    temperature: float
    samples: Sequence[Sample]
    ladders: Sequence[Ladder]


def make_board(stores: Sequence[Watched], rate: float, seed: int) -> Board:
    """The rows of every model, temperature, penalty and kind of attention; nulls come last."""
    bootstrap = Bootstrap(seed)
    ladders: dict[Group, dict[str, Ladder]] = defaultdict(dict)
    traces: dict[tuple[Group, str], dict[Problem, list[Any]]] = defaultdict(dict)
    nulls: dict[tuple[Group, str], Pairs] = defaultdict(list)
    for store in stores:
        for group, samples in _groups(store).items():
            of_group = ladders[group]
            for name, pairs in _null_pairs(samples):
                nulls[group, name] = _added(nulls[group, name], pairs)
            for ladder in store.ladders:
                of_group[ladder.key] = ladder
                known = traces[group, ladder.key]
                own = [s for s in samples if s.action in ("none", ladder.action)]
                for problem, part in traces_by_problem(own, ladder.names).items():
                    known[problem] = _added(known.get(problem, []), part)
    board: dict[Group, list[BoardRow]] = {}
    for group, own in ladders.items():
        rows = (_row(x, traces[group, key], rate, seed, bootstrap) for key, x in own.items())
        board[group] = [row for row in rows if row is not None]
    for (group, name), pairs in nulls.items():
        if pairs:
            row = BoardRow(f"null ({name})", effect=_effect(pairs, bootstrap))
            board[group].append(row)
    return board


def _groups(store: Watched) -> Mapping[Group, list[Sample]]:
    groups: dict[Group, list[Sample]] = defaultdict(list)
    for sample in store.samples:
        if sample.role != "control":
            is_full = sample.backend == "full" or sample.role == "null"
            attention = "full attention" if is_full else "sparse attention"
            groups[Group(sample.model, store.temperature, sample.penalty, attention)].append(sample)
    return groups


def _null_pairs(samples: Sequence[Sample]) -> Iterator[tuple[str, Pairs]]:
    """Full attention drawn again next to itself; without such draws every second sample."""
    plain = [sample for sample in samples if sample.detector == "none"]
    full = {s.pair: s for s in plain if s.backend == "full" and s.penalty == "none"}
    again: dict[str, list[Sample]] = defaultdict(list)
    for sample in plain:
        if sample.role == "null":
            again[sample.backend].append(sample)
    if not again:
        odd = (sample for sample in full.values() if sample.sample_index % 2)
        again["next sample"] = [replace(s, sample_index=s.sample_index - 1) for s in odd]
    for name, drawn in again.items():
        yield name, paired(drawn, full)


def _added(known: list[T], new: Sequence[T]) -> list[T]:
    """Those of two stores; a run that both have counts once."""
    seen = {pair[0].record for pair in known}
    return known + [pair for pair in new if pair[0].record not in seen]


def _row(
    ladder: Ladder, traces: Traces, rate: float, seed: int, bootstrap: Bootstrap
) -> BoardRow | None:
    """The row of a ladder; None where what follows its verdicts was not decoded."""
    every = [stopped for pairs in traces.values() for _, stopped in pairs]
    # What follows a verdict may be there for some of the steps, which are then those to choose of.
    there = [at for at in range(len(ladder.steps)) if all(is_usable(part[at]) for part in every)]
    if not (every and there):
        return None
    steps = [ladder.steps[at] for at in there]
    traces = {
        problem: [(plain, [stopped[at] for at in there]) for plain, stopped in pairs]
        for problem, pairs in traces.items()
    }
    halves = split(traces, seed, LOST_ANSWERS)
    first, second = (Split(half, steps, LOST_ANSWERS) for half in halves)
    at = choose_setting(first.clean, len(steps), rate)
    on = first.false_stops(at or 0)
    row = BoardRow(ladder.name, None, on.problems, on.traces, on.stopped, on.high)
    if at is None:
        return row
    pairs = [(stopped[at], plain) for plain, stopped in second.all]
    return replace(row, setting=steps[at], effect=_effect(pairs, bootstrap))


def _effect(pairs: Pairs, bootstrap: Bootstrap) -> Effect:
    def asked(name: str, of: str) -> float | None:
        whole = math.fsum(getattr(plain, of) or 0 for _, plain in pairs)
        return math.fsum(getattr(left, name) for left, _ in pairs) / whole if whole else None

    return Effect(
        problems=len({problem_of(plain) for _, plain in pairs}),
        judged=len(judged(pairs)),
        stopped=detector_effect(pairs, bootstrap, pooled=True),
        keys=spared(pairs, lambda sample: sample.paid_keys, bootstrap),
        loops=spared(pairs, lambda sample: sample.wasted_loop, bootstrap),
        tails=spared(pairs, lambda sample: sample.wasted_tail, bootstrap),
        asked_tokens=asked("asked_tokens", "paid_tokens"),
        asked_keys=asked("asked_keys", "paid_keys"),
    )
