"""One configuration's measures as every report reads them, and the order in which rows stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import get_type_hints

from experiments.report.statistics import Change, Interval, Ratio
from experiments.store.samples.sample import Key, Role

# Readers compare with the paper's columns and go from easy to hard; other names follow by alphabet.
_DATASETS = ("easy", "medium", "hard", "retold", "long", "gsm8k", "math500", "aime")
_BACKENDS = ("full", "full again", "noise", "h2o", "sink", "quest", "infllm")

#: What a data set is called that is all of them together.
POOLED = "all"

#: A detector and what it does when it fires.
DetectorAction = tuple[str, str]


@dataclass(frozen=True)
class DetectorEffect:
    """What a detector changes of the same traces left alone.

    Attributes:
        fired: traces in which it gave a verdict, whatever followed.
        tokens: share of the tokens paid that it saves; what was dropped again was paid, too.
        correct, incorrect: the same over the traces solved, and not solved, without it.
        solved: judged traces solved without it.
    """

    fired: int
    tokens: Interval
    correct: float | None
    incorrect: float | None
    paid: int
    paid_without: int
    solved: int
    change: Change


@dataclass(frozen=True)
class PenaltyEffect:
    """What a penalty changes; `loops`: of the share of outputs that repeat a block."""

    length_ratio: Ratio
    change: Change
    loops: float | None


@dataclass(frozen=True)
class AtCap:
    """What a `ReportRow` would be at a smaller cap, `factor` times full attention's length."""

    factor: int
    capped: int
    accuracy: Interval
    accuracy_change: Change
    length_ratio: Ratio
    length_ratio_solved: Ratio
    solved_by_both: int
    keys_read_per_solved_ratio: Ratio
    claims: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReportRow:
    """The measures of one configuration, see docs/measures.md. Missing is None, never 0.

    Shares, changes, ratios and savings are fractions (0.1 is 10 percentage points). Where samples
    failed or are missing there are counts alone. Intervals and p take a problem's samples as one.
    `role`: "method", "control" or "null": full attention against itself. `claims`: see `claims.py`;
    `caps`: the same samples read at smaller caps; `recall_by_depth`, no column: see `pairs`.
    """

    model: str
    dataset: str
    backend: str
    budget: int | None
    backend_params: Mapping[str, object]
    role: Role
    penalty: str
    detector: str
    action: str
    samples: int
    problems: int
    n: int
    accuracy: Interval
    finished: int
    capped: int
    stopped: int
    errors: int
    missing: int
    pairs: int
    pairs_censored: int
    accuracy_change: Change
    mean_tokens: Interval
    length_ratio: Ratio
    length_ratio_solved: Ratio
    solved_by_both: int
    keys_read_per_solved: float | None
    keys_read_per_solved_ratio: Ratio
    keys_kept_max: int | None
    keys_read_mean: float | None
    compression_ratio: Interval
    repetition_rate: float | None
    looping_rate: float | None
    decode_sec: float | None
    claims: tuple[str, ...]
    caps: tuple[AtCap, ...]
    pass_at: Mapping[int, Interval]
    recall_by_depth: Mapping[int, Interval]
    detector_effect: DetectorEffect | None
    penalty_effect: PenaltyEffect | None

    @property
    def key(self) -> Key:
        """What rows share that differ in their detector alone: that of their samples."""
        params = repr(sorted(self.backend_params.items()))
        return self.model, self.dataset, self.penalty, self.backend, self.budget, params

    @property
    def detector_action(self) -> DetectorAction:
        """Detector and action."""
        return self.detector, self.action

    @property
    def is_complete(self) -> bool:
        """Whether every sample that was planned is there."""
        return not self.errors and not self.missing

    @property
    def is_baseline(self) -> bool:
        """Whether it is full attention without a penalty, which all are measured against."""
        return self.backend == "full" and self.penalty == "none"

    @property
    def is_sparse(self) -> bool:
        """Whether it is a sparse method or a control of one: neither full attention nor a null."""
        return self.backend != "full" and self.role != "null"

    def to_dict(self) -> dict[str, object]:
        """The row as JSON takes it, a column each; see `columns`."""
        pass_at = {str(k): asdict(interval) for k, interval in self.pass_at.items()}
        return _flat(self) | {
            "backend_params": dict(self.backend_params),
            "claims": list(self.claims),
            "caps": [_flat(cap) | {"claims": list(cap.claims)} for cap in self.caps],
            "pass_at": pass_at,
            "detector_effect": self.detector_effect and asdict(self.detector_effect),
            "penalty_effect": self.penalty_effect and asdict(self.penalty_effect),
        }


def columns() -> dict[str, object]:
    """The names of a row's columns in their order, and the type of each.

    An interval is several columns: its name alone, then with `_low`, `_high`, `_p`, `_differs`;
    answers lost and gained are `solved_lost` and `solved_gained`.
    """
    kinds: dict[str, object] = {}
    for name, kind in get_type_hints(ReportRow).items():
        if isinstance(kind, type) and issubclass(kind, Interval):
            kinds |= {_column(name, part): hint for part, hint in get_type_hints(kind).items()}
        elif name != "recall_by_depth":
            kinds[name] = kind
    return kinds


def _flat(row: ReportRow | AtCap) -> dict[str, object]:
    values: dict[str, object] = {}
    for name in (field.name for field in fields(row) if field.name != "recall_by_depth"):
        value = getattr(row, name)
        if isinstance(value, Interval):
            values |= {_column(name, part): number for part, number in asdict(value).items()}
        else:
            values[name] = value
    return values


def _column(name: str, part: str) -> str:
    if part == "estimate":
        return name
    return f"solved_{part}" if part in ("lost", "gained") else f"{name}_{part}"


def order(row: ReportRow) -> tuple[object, ...]:
    """Sort key of a row: model, dataset, backend, then nothing before something, small to large."""
    penalty = row.penalty != "none", row.penalty
    params = repr(sorted(row.backend_params.items()))
    method = _rank(_BACKENDS, row.backend), row.budget or 0, params
    detector = row.detector != "none", row.detector, row.action
    return (row.model, dataset_order(row.dataset), *penalty, *method, *detector)


def dataset_order(name: str) -> tuple[int, str]:
    """Sort key of a data set: easy before hard, the paper's order, others by alphabet."""
    return _rank(_DATASETS, name)


def _rank(known: Sequence[str], name: str) -> tuple[int, str]:
    return (known.index(name) if name in known else len(known), name)


def by_penalty(rows: Sequence[ReportRow]) -> dict[str, list[ReportRow]]:
    """Rows of each penalty, those without one first: reports never mix them."""
    names = sorted({row.penalty for row in rows}, key=lambda name: (name != "none", name))
    return {name: [row for row in rows if row.penalty == name] for name in names}
