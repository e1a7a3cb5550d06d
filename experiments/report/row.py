"""One configuration's measures as every report reads them, and the lines a chart draws of them."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import get_type_hints

from experiments.grid.config import Config
from experiments.report.statistics import Change, Interval, Ratio
from experiments.store.samples.sample import Key, Role

# Readers compare with the paper's columns and go from easy to hard; other names follow by alphabet.
_DATASETS = ("easy", "medium", "hard", "retold", "long", "gsm8k", "math500", "aime")
_BACKENDS = ("full", "full again", "noise", "h2o", "sink", "quest", "infllm")

#: What a data set is called that is all of them together.
POOLED = "all"


#: The columns that a reader asks for first; the others follow in the order of a row's fields.
FIRST = (
    *("model", "dataset", "backend", "budget", "penalty", "detector", "action", "n", "accuracy"),
    *("accuracy_low", "accuracy_high", "accuracy_change", "mean_tokens", "length_ratio"),
    *("length_ratio_low", "length_ratio_high", "token_savings", "finished", "capped", "stopped"),
    *("errors", "keys_kept_max", "keys_read_mean", "keys_read_max", "dense_layer_keys_read_mean"),
    *("compression_ratio", "repetition_rate", "decode_sec", "keys_read_per_solved"),
)


@dataclass(frozen=True)
class Cheaper:
    """At which budgets a method takes fewer keys per solved problem than full attention.

    Between measured budgets a crossing is interpolated in the logarithms of budget and cost. Other
    budgets between `first` and `last` may cost more: `budgets` of the `of` measured ones cost less.

    Attributes:
        budgets, of: how many measured budgets cost less, of how many that can be compared; one that
            solves nothing where full attention solves something costs without bound.
        first, last: between these it costs less; None where no budget does.
        first_kind: "crossing", or "at most": nothing dearer was measured below it with any solved.
        last_kind: "crossing", or "at least".
        best: the measured budget that costs least.
        best_ratio, best_high: its cost over full attention's and the upper end of that interval:
            below 1, it saves more surely than the interval's 97.5% for this budget alone.
    """

    budgets: int
    of: int
    first: float | None
    first_kind: str | None
    last: float | None
    last_kind: str | None
    best: int | None
    best_ratio: float | None
    best_high: float | None


@dataclass(frozen=True)
class AtCap:
    """What a row would be at a smaller cap; its fields mean what they mean in a `ReportRow`.

    Attributes:
        factor: the cap, times full attention's length.
        claims: see `ReportRow`.
    """

    factor: int
    capped: int
    accuracy: Interval
    accuracy_change: Change
    length_ratio: Ratio
    length_ratio_of_sums: float | None
    length_ratio_solved: Ratio
    solved_by_both: int
    keys_read_per_solved_ratio: Ratio
    claims: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReportRow:
    """The measures of one configuration. Missing is None, never 0.

    Shares, changes, ratios and savings are fractions (0.1 is 10 percentage points). Counts: `n`
    scored samples, of `samples` in all; `finished`, `capped`, `stopped` and `errors` (out of memory
    included) and `missing` add up to `samples`; in `fired` the detector gave a verdict, whatever
    followed. Means are over samples unless said otherwise. Where samples failed or are missing
    there are counts alone.

    - `accuracy*`: share solved of n, Wilson; `accuracy_change*` against the same problems under
      full attention: Tango's interval, exact McNemar p, problems lost and gained. `pairs` have
      both runs. With several samples a problem, intervals and p take them as one problem's.
    - Of `pairs_censored` full attention was cut at its own cap; they are in no ratio of lengths or
      costs, for which it is not known how long full attention would have been.
    - `length_ratio*`: exp of the mean over problems of log(tokens / tokens under full attention),
      each log clipped where the cap cuts, so that equal distributions have ratio 1; bootstrap-t
      interval, none where fewer than six problems differ (`..._differs`); `..._p` of the exact
      sign-flip test. `..._of_sums` is the ratio of the totals, which is what is paid;
      `..._finished`, `..._capped` and `..._stopped` are over the samples that ended that way;
      `..._solved` over the `solved_by_both` samples that both solve: longer though right.
    - `pairs_same` of `pairs` are the same output as full attention's, token for token.
    - `caps`: the same samples read at smaller caps than the one they were decoded with.
    - `role`: "method", "control" or "null": full attention beside itself, which tells what chance
      alone does.
    - `claims`: what may be said of the row, see `claims.py`: "longer", "shorter", "longer solved",
      "shorter solved", "fewer keys", "more keys", "loses", "gains".
    - `mean_tokens` is what came out, with a bootstrap-t interval of its log, none of fewer than six
      problems; `mean_paid_tokens` has tokens that were dropped again, too.
    - `token_savings*`: 1 - tokens paid with / without the detector, over all samples and over those
      correct and incorrect without it; `detector_*`: the accuracy it changes; of `detector_solved`
      samples solved without it, `detector_solved_differing` are not full attention's output, and
      they alone can be lost where a detector leaves full attention alone. (The paper's text
      defines savings as the inverse ratio and its caption calls the change relative; its numbers,
      like ours, are 1 - with / without and absolute.)
    - `wasted_*`: tokens of all samples that said again what stood there, where the cap cut a trace
      that is not solved: of the loop at its end behind its first round (`loop`), and of the longest
      tail that was nearly all seen before (`tail`). `..._savings`: 1 - left by the detector /
      wasted without it.
    - `penalty_*`: what a penalty changes against the same backend, budget and detector without it:
      mean over problems of the ratio of lengths, accuracy, repetition rate.
    - Seconds and what is made of them are None, and `seconds_null_why` says why, where the runs or
      their partners under full attention came from several sweeps (threads, device and host are a
      sweep's; a sweep that was resumed is two) or from batches of different size, or where that is
      not known, as in stores of before.
    - `end_to_end_sec` is prefill + decode; `end_to_end_ratio` and `cache_byte_sec_ratio` are totals
      over the totals under full attention.
    - `*_per_solved`: summed over all scored samples / problems solved; None when none is solved.
      `*_per_solved_ratio`: over what a solved problem costs under full attention, paired; bounds
      by bootstrap-t of its log, None where fewer than six are solved or differ (`..._differs`);
      `..._p`: of swapping the two sides of problems.
    - `cheaper`: at which budgets of this row's line a solved problem takes fewer keys.
    - `compression_ratio*`: compressed / original bytes of whole outputs. `compression_curve` holds
      (tokens, mean ratio, samples) wherever all samples that came so far were measured.
    - `keys_read` is the mean over samples of all keys a run read, as `*_per_solved` sum them.
    - `keys_read_mean` and `dense_layer_keys_read_mean` are means of each sample's mean per step;
      `*_max` and `cache_bytes_peak` are maxima.
    - `at_positions`: samples that were cut where the model's positions end, or went beyond them.
    - `avg_at_k`, `pass_at_k`: k = `samples_per_problem` > 1, where every problem has k scored.
      `pass_at*`: the chance that k samples hold a correct one, unbiased, by k = 1, 2, 5, 10, ... up
      to as many as were drawn; bounds by bootstrap over problems. Empty with one sample a problem.
    """

    model: str
    dataset: str
    backend: str
    budget: int | None
    penalty: str
    detector: str
    action: str
    n: int
    accuracy: Interval
    finished: int
    capped: int
    stopped: int
    errors: int
    keys_kept_max: int | None
    keys_read_mean: float | None
    keys_read_max: int | None
    dense_layer_keys_read_mean: float | None
    repetition_rate: float | None
    decode_sec: float | None

    backend_params: dict[str, object]
    samples: int
    problems: int
    out_of_memory: int
    missing: int
    fired: int
    pairs: int
    pairs_missing: int
    pairs_censored: int
    pairs_same: int
    role: Role
    accuracy_change: Change
    mean_tokens: Interval
    mean_paid_tokens: float | None
    length_ratio: Ratio
    length_ratio_of_sums: float | None
    length_ratio_finished: float | None
    length_ratio_capped: float | None
    length_ratio_stopped: float | None
    length_ratio_solved: Ratio
    solved_by_both: int
    token_savings: Interval
    token_savings_correct: float | None
    token_savings_incorrect: float | None
    detector_pairs: int | None
    detector_pairs_missing: int | None
    detector_tokens: int | None
    detector_tokens_without: int | None
    detector_solved: int | None
    detector_solved_differing: int | None
    detector_accuracy_change: Change
    wasted_loop: int | None
    wasted_tail: int | None
    wasted_loop_savings: Interval
    wasted_tail_savings: Interval
    penalty_pairs: int | None
    penalty_pairs_missing: int | None
    penalty_length_ratio: Ratio
    penalty_accuracy_change: Change
    penalty_repetition_change: float | None
    keys_read: float | None
    prefill_sec: float | None
    end_to_end_sec: float | None
    end_to_end_ratio: float | None
    cache_bytes_peak: int | None
    cache_byte_sec: float | None
    cache_byte_sec_ratio: float | None
    keys_read_per_solved: Interval
    keys_read_per_solved_ratio: Ratio
    sec_per_solved: float | None
    sec_per_solved_ratio: float | None
    compression_curve: tuple[tuple[int, float, int], ...]
    samples_per_problem: int
    avg_at_k: float | None
    pass_at_k: float | None
    reused_tokens: int
    caps: tuple[AtCap, ...]
    claims: tuple[str, ...]
    cheaper: Cheaper | None
    seconds_null_why: str | None
    compression_ratio: Interval
    at_positions: int
    pass_at: Mapping[int, Interval]

    @property
    def key(self) -> Key:
        """What rows share that differ in their detector alone: that of their samples."""
        told = repr(sorted(self.backend_params.items()))
        return self.model, self.dataset, self.penalty, self.backend, self.budget, told

    @property
    def watched(self) -> tuple[str, str]:
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
        """The row as JSON takes it: a column each, `FIRST` first; see `columns`."""
        found = _flat(self)
        found |= {
            "cheaper": None if self.cheaper is None else asdict(self.cheaper),
            "claims": list(self.claims),
            "caps": [_flat(cap) | {"claims": list(cap.claims)} for cap in self.caps],
            "compression_curve": [list(at) for at in self.compression_curve],
        }
        for part in (part.name for part in fields(Interval)):
            by_k = {str(k): getattr(at, part) for k, at in self.pass_at.items()}
            found[_column("pass_at", part)] = by_k
        return {name: found[name] for name in (*FIRST, *found)}


def columns() -> dict[str, object]:
    """The names of a row's columns in their order, and the type of each.

    A value with an interval is several: itself under its own name, then `_low`, `_high` and, where
    it is tested, `_p` and `_differs`; answers lost and gained are `solved_lost` and `solved_gained`
    behind what stands before `accuracy_change`.
    """
    found: dict[str, object] = {}
    for name, hint in get_type_hints(ReportRow).items():
        kind = Interval if name == "pass_at" else hint
        if isinstance(kind, type) and issubclass(kind, Interval):
            parts = get_type_hints(kind)
            found |= {_column(name, part): parts[part] for part in parts}
        else:
            found[name] = hint
    found |= dict.fromkeys((_column("pass_at", part.name) for part in fields(Interval)), dict)
    return {name: found[name] for name in (*FIRST, *found)}


def _flat(one: ReportRow | AtCap) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in (field.name for field in fields(one)):
        value = getattr(one, name)
        if isinstance(value, Interval):
            parts = (part.name for part in fields(value))
            found |= {_column(name, part): getattr(value, part) for part in parts}
        else:
            found[name] = value
    return found


def _column(name: str, part: str) -> str:
    if part == "estimate":
        return name
    if part in ("lost", "gained"):
        return name.replace("accuracy_change", f"solved_{part}")
    return f"{name}_{part}"


def order(row: ReportRow) -> tuple[object, ...]:
    """Sort key of a row: model, dataset, backend, then nothing before something, small to large."""
    return (
        row.model,
        dataset_order(row.dataset),
        row.penalty != "none",
        row.penalty,
        _rank(_BACKENDS, row.backend),
        row.budget or 0,
        repr(sorted(row.backend_params.items())),
        row.detector != "none",
        row.detector,
        row.action,
    )


def pairs(rows: Sequence[ReportRow]) -> dict[tuple[str, str], dict[Key, ReportRow]]:
    """The rows with a detector, by detector and action, then by the key of the row without."""
    found: dict[tuple[str, str], dict[Key, ReportRow]] = {}
    for row in sorted(rows, key=lambda row: row.watched):
        if row.detector != "none":
            found.setdefault(row.watched, {})[row.key] = row
    return found


def shown_detector(rows: Sequence[ReportRow]) -> tuple[str, str] | None:
    """The detector and action that pictures show beside none: a sweep's usual one, if any."""
    usual = (Config().detectors[0], "stop")
    return min(pairs(rows), key=lambda pair: pair != usual, default=None)


def dataset_order(name: str) -> tuple[int, str]:
    """Sort key of a data set: easy before hard, the paper's order, others by alphabet."""
    return _rank(_DATASETS, name)


def by_penalty(rows: Sequence[ReportRow]) -> dict[str, list[ReportRow]]:
    """Rows apart by penalty, those without one first: reports never mix them."""
    names = sorted({row.penalty for row in rows}, key=lambda name: (name != "none", name))
    return {name: [row for row in rows if row.penalty == name] for name in names}


def _rank(known: Sequence[str], name: str) -> tuple[int, str]:
    return (known.index(name) if name in known else len(known), name)


def series(rows: Sequence[ReportRow]) -> dict[str, list[ReportRow]]:
    """Rows that differ in budget alone, ascending, under the backend's name.

    Where rows of a backend share a budget, the name is followed by what tells them apart:
    parameters, or the penalty. Expects the rows of one model and data set under one detector.
    """
    telling: dict[str, set[str]] = defaultdict(set)
    for row, other in itertools.combinations(rows, 2):
        if row.backend == other.backend:
            mine, theirs = _parameters(row), _parameters(other)
            differ = {name for name in mine | theirs if mine.get(name) != theirs.get(name)}
            # Parameters may follow the budget (H2O's halves); only at the same one do they tell.
            telling[row.backend] |= differ if row.budget == other.budget else differ & {"penalty"}
    lines: dict[str, list[ReportRow]] = defaultdict(list)
    for row in sorted(rows, key=order):
        parts = [
            f"{name}={row.backend_params.get(name)}"
            for name in sorted(telling[row.backend] - {"penalty"})
        ]
        if "penalty" in telling[row.backend] and row.penalty != "none":
            parts.append(f"+ {row.penalty}")
        lines[" ".join([row.backend, *parts])].append(row)
    return dict(lines)


def _parameters(row: ReportRow) -> dict[str, object]:
    return row.backend_params | {"penalty": row.penalty}
