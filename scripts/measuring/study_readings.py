"""What stores of the study of the reasoner say: every number that its page prints.

    python scripts/measuring/study_readings.py lil-out/study/hard-1000 --json > hard.json

Stores are those of `measure_study.py`. Nothing is decoded. Each store is read at every cap; every
cell stands beside full attention on the same problems, and so does the null (`dither`), which goes
through the same reading and the same rules. Constants behind eFLOPs stand in the document.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from text_readings import CLASSES, TextReading, read_text
from trace_readings import CLOSING, asked_by

from attention.errors import InvalidValue
from experiments.grid.detectors import build_detectors
from experiments.reasoner.judge import pieces
from experiments.report.bootstrap import Bootstrap
from experiments.report.statistics import (
    LEAST,
    Interval,
    holm,
    mcnemar,
    sign_flips,
    tango,
    wilson,
)
from experiments.store.samples.sample import Sample, is_usable
from experiments.store.study import Study
from experiments.sweep.dry_run import footprint
from lil import Trace

CAPS = (2, 4, 8)
MARGIN, LEVEL, LOSS = 0.05, 0.05, 0.01
#: Operations a byte of memory is worth: a B200's 4.5e15 per second in 16 bits over 8e12 bytes.
INTENSITY = 562.5
COSTS = ("keys", "bytes", "byte_steps", "seconds", "eflops", "tokens")
METHODS = ("quest", "infllm", "h2o", "sink")
#: A false stop in no more than this share of full attention's texts, by the upper bound.
FALSE_STOPS = 0.01
Row = dict[str, Any]


@dataclass(frozen=True)
class Prices:
    """What a model's numbers cost, in bytes and operations.

    Args:
        parameters: each is multiplied and added once a token.
        key_bytes: of one key and its value in one KV head.
        key_flops: of one key read in one KV head, by all its query heads.
    """

    parameters: int
    key_bytes: float
    key_flops: float

    @classmethod
    def of(cls, study: Study) -> Prices:
        """Those of a study's model."""
        from experiments.grid import models

        source = models.find(study.config.models[0], study.config.revision, here=True)
        size = footprint(source.location, source.revision, study.config.dtype)
        config = json.loads((Path(source.location) / "config.json").read_text())
        heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
        head = config.get("head_dim") or config["hidden_size"] // heads
        return cls(size.parameters, size.kv_bytes_per_token / groups, 4 * head * heads / groups)

    def costs(self, trace: Trace, kept: int) -> dict[str, float]:
        """What a trace's first tokens cost; seconds nan where they are not known."""
        if not kept:
            return dict.fromkeys(COSTS, 0.0) | {"seconds": trace.prefill_sec}
        cost = trace.cost_at(kept)
        moved = cost.keys_read * self.key_bytes
        flops = 2 * self.parameters * kept + self.key_flops * cost.keys_read
        seconds = math.nan if cost.seconds is None else trace.prefill_sec + cost.seconds
        return {
            "keys": cost.keys_read,
            "bytes": moved,
            "byte_steps": byte_steps(trace, kept),
            "seconds": seconds,
            "eflops": flops + INTENSITY * moved,
            "tokens": float(kept),
        }


def byte_steps(trace: Trace, kept: int) -> float:
    """Bytes held times steps they are held, a straight line between two checks."""
    points = [one for one in trace.checks if one.tokens < kept] + [trace.cost_at(kept)]
    points.insert(0, trace.cost_at(0))
    return math.fsum((b.tokens - a.tokens) * (a.cache_bytes + b.cache_bytes) / 2
                     for a, b in pairwise(points))  # fmt: skip


@dataclass(frozen=True)
class Text:
    """A trace, read and priced at every cap."""

    sample: Sample
    at: Mapping[int, TextReading]
    costs: Mapping[int, Mapping[str, float]]

    @property
    def top(self) -> TextReading:
        """Under the largest cap."""
        return self.at[max(self.at)]


Cell = tuple[str, int | None, bool]
Pair = tuple[Text, Text]


def cell_of(sample: Sample) -> Cell:
    """Method, budget and whether the prompt is kept."""
    return sample.backend, sample.budget, bool(dict(sample.backend_params).get("keep_prompt"))


def is_method(cell: Cell) -> bool:
    """Whether it is one of the cells of the methods."""
    return cell[0] in METHODS and not cell[2]


# ---------------------------------------------------------------- reading


def caps_of(studies: Sequence[Study]) -> tuple[int, ...]:
    """The caps at which all these stores can be read: none above their own.

    Raises:
        InvalidValue: a store without a cap in times of full attention's length.
    """
    for study in studies:
        if (study.config.cap_factor or 0) < min(CAPS):
            allowed = f"one of at least {min(CAPS)}x-full, in each store"
            raise InvalidValue("cap", study.config.cap, allowed)
    least = min(study.config.cap_factor or 0 for study in studies)
    return tuple(cap for cap in CAPS if cap <= least)


def texts(studies: Sequence[Study]) -> tuple[dict[str, dict[Cell, dict[str, Text]]], int]:
    """All traces by level, cell and problem, and how many runs are not there.

    Raises:
        InvalidValue: traces of other problems, or no store with full attention.
    """
    found: dict[str, dict[Cell, dict[str, Text]]] = defaultdict(lambda: defaultdict(dict))
    missing, caps = 0, caps_of(studies)
    for study in studies:
        prices = Prices.of(study)
        plain = study.samples([]).samples
        ordered = sorted(plain, key=lambda one: one.backend != "full")
        for sample in ordered:
            if sample.penalty != "none":
                continue
            cells = found[sample.dataset]
            cell = cell_of(sample)
            if sample.item_id in cells[cell]:
                continue
            if not is_usable(sample):
                missing += 1
                continue
            record = study.store.get(sample.record or "")
            assert record is not None
            trace = record.trace()
            drawn = asked_by(sample.item_id, trace.prompt_bytes)
            full = cells[("full", None, False)].get(sample.item_id)
            ended = trace.finish == "eos"
            at, costs = {}, {}
            for cap in caps:
                most = None if full is None else cap * full.top.tokens
                kept = trace.tokens if most is None else min(most, trace.tokens)
                same = next((one for one in at.values() if one.tokens == kept), None)
                at[cap] = same or read_text(drawn, trace.pieces, ended=ended, cap=most)
                costs[cap] = prices.costs(trace, kept)
            found[sample.dataset][cell][sample.item_id] = Text(sample, at, costs)
    if any(("full", None, False) not in cells for cells in found.values()) or not found:
        raise InvalidValue("store", str([str(s.folder) for s in studies]), "full attention in it")
    return {level: dict(cells) for level, cells in found.items()}, missing


def paired(mine: Mapping[str, Text], theirs: Mapping[str, Text]) -> list[Pair]:
    """Texts of the same problems, those left out whose partner was cut at its own cap."""
    return [
        (mine[item], theirs[item])
        for item in sorted(mine.keys() & theirs.keys())
        if theirs[item].sample.status != "capped" or theirs[item].sample.backend != "full"
    ]


# ---------------------------------------------------------------- one comparison


def interval(one: Interval) -> Row:
    return {"estimate": one.estimate, "low": one.low, "high": one.high}


def difference(values: Sequence[float], bootstrap: Bootstrap) -> Row:
    """Mean of differences, one a problem, with its interval and sign-flip test."""
    p = sign_flips(values, bootstrap.seed) if values else None
    differs = sum(bool(one) for one in values)
    return {**interval(bootstrap.mean(values)), "n": len(values), "differs": differs, "p": p}


def geometric(logs: Sequence[float], bootstrap: Bootstrap, most: float | None = None) -> Row:
    """Geometric mean of ratios, one a problem; whether it lies within the margin."""
    found = bootstrap.log_mean(logs, most)
    low, high = found.low, found.high
    within = low is not None and high is not None and low > 1 / (1 + MARGIN) and high < 1 + MARGIN
    differs = sum(abs(one) > 1e-12 for one in logs)
    p = sign_flips(logs, bootstrap.seed) if logs else None
    # Where hardly any differ there is no interval; all equal is within any margin.
    return {**interval(found), "n": len(logs), "differs": differs, "p": p,
            "within": within or bool(len(logs) >= LEAST and not differs)}  # fmt: skip


def compared(pairs: Sequence[Pair], cap: int, bootstrap: Bootstrap) -> Row:
    """The first of each pair against the second, at one cap."""
    read = [(m.at[cap], t.at[cap]) for m, t in pairs]
    right = [(m, t) for m, t in read if m.first_right is not None and t.first_right is not None]
    both = [(m, t) for m, t in read if m.solved and t.solved]
    lost = sum(t.solved and not m.solved for m, t in read)
    gained = sum(m.solved and not t.solved for m, t in read)
    long = [(m, t) for m, t in read if m.tokens and t.tokens]
    most = math.log(cap)
    sums = [sum(one.tokens for one in side) for side in zip(*read, strict=True)] or [0, 0]
    return {
        "n": len(read),
        "solved": sum(m.solved for m, _ in read),
        "solved_other": sum(t.solved for _, t in read),
        "lost": lost,
        "gained": gained,
        "change": interval(tango(lost, gained, len(read))),
        "p": mcnemar(lost, gained),
        "until_right": difference([m.first_right - t.first_right for m, t in right], bootstrap),
        "after_right": difference([m.after - t.after for m, t in right], bootstrap),
        "right_here_alone": sum(m.first_right is not None and t.first_right is None
                                for m, t in read),
        "right_there_alone": sum(t.first_right is not None and m.first_right is None
                                 for m, t in read),
        "right_never": sum(m.first_right is None and t.first_right is None for m, t in read),
        "cut_before_right": sum(m.end == "cut" and m.first_right is None for m, _ in read),
        "ratio_solved": geometric([math.log(m.tokens / t.tokens) for m, t in both], bootstrap),
        "ratio_all": geometric(
            [max(-most, min(most, math.log(m.tokens / t.tokens))) for m, t in long], bootstrap, most
        ),
        "ratio_of_sums": sums[0] / sums[1] if sums[1] else None,
        "per_solved_ratio": {cost: cost_ratio(pairs, cap, cost, bootstrap) for cost in COSTS},
        "excess": excess(read),
    }  # fmt: skip


def cost_ratio(pairs: Sequence[Pair], cap: int, cost: str, bootstrap: Bootstrap) -> Row:
    """Cost per solved problem of the first side over the second's."""
    rows = [
        (m.costs[cap][cost], float(m.at[cap].solved), t.costs[cap][cost], float(t.at[cap].solved))
        for m, t in pairs
    ]
    rows = [row for row in rows if not any(map(math.isnan, row))]
    differing = sum(row[:2] != row[2:] for row in rows)
    return {**interval(bootstrap.log_ratio(rows, differing)), "n": len(rows)}


def excess(read: Sequence[tuple[TextReading, TextReading]]) -> Row:
    """Tokens of the first side less the second's on the same problems, by class and by end."""
    by_class: Counter[str] = Counter()
    longer: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    for mine, theirs in read:
        more = {one: mine.classes[one] - theirs.classes[one] for one in CLASSES}
        by_class.update(more)
        if mine.tokens > theirs.tokens:
            longer.update(more)
            ends[mine.end] += mine.tokens - theirs.tokens
    return {
        "tokens": sum(mine.tokens - theirs.tokens for mine, theirs in read),
        "by_class": {one: by_class[one] for one in CLASSES},
        "longer": sum(mine.tokens > theirs.tokens for mine, theirs in read),
        "longer_by_class": {one: longer[one] for one in CLASSES},
        "longer_by_end": dict(ends),
    }


def alone(some: Sequence[Text], cap: int, threads: int, bootstrap: Bootstrap) -> Row:
    """What a cell's texts are, without a partner."""
    read = [one.at[cap] for one in some]
    solved = sum(one.solved for one in read)
    seconds = math.fsum(one.costs[cap]["seconds"] for one in some)
    closing = len(pieces(CLOSING))
    stopped = sum(
        one.tokens if one.first_right is None else min(one.tokens, one.first_right + closing)
        for one in read
    )
    tokens = sum(one.tokens for one in read)
    return {
        "n": len(read),
        "accuracy": interval(wilson(solved, len(read))),
        "ends": dict(Counter(one.end for one in read)),
        "tokens": tokens,
        "classes": {one: sum(text.classes[one] for text in read) for one in CLASSES},
        "first_is_right": sum(one.first_is_right for one in read),
        "last_is_right": sum(one.last_is_right for one in read),
        "ever_right": sum(one.first_right is not None for one in read),
        "right_to_wrong": sum(one.right_to_wrong for one in read),
        "wrong_to_right": sum(one.wrong_to_right for one in read),
        "wrong_to_wrong": sum(one.wrong_to_wrong for one in read),
        # Who knew the answer would stop at the first right value: nothing can do better.
        "ceiling_solved": sum(one.first_right is not None for one in read),
        "ceiling_saved": 1 - stopped / tokens if tokens else None,
        "cost": {cost: math.fsum(one.costs[cap][cost] for one in some) for cost in COSTS},
        "per_solved": {
            cost: interval(bootstrap.ratio(
                [(one.costs[cap][cost], float(one.at[cap].solved)) for one in some]
            ))
            for cost in COSTS if not any(math.isnan(one.costs[cap][cost]) for one in some)
        },
        "solved_per_cpu_hour": 3600 * solved / (seconds * threads) if seconds > 0 else None,
    }  # fmt: skip


# ---------------------------------------------------------------- what may be said


def with_holm(rows: Sequence[Row], name: str) -> None:
    """Put the corrected p of one outcome into its rows; rows without a test stay out."""
    told = [row["against_full"][name] for row in rows]
    tested = [one for one in told if one["p"] is not None]
    for one, p in zip(tested, holm([one["p"] for one in tested]), strict=True):
        one["p_holm"] = p


def claim(found: Row, null: Row | None) -> str | None:
    """What may be said of a geometric mean: longer, shorter, within the margin, or nothing."""
    p, low, high = found.get("p_holm", found["p"]), found["low"], found["high"]
    if found["within"]:
        return "within 5%"
    if p is None or p > LEVEL or low is None or high is None or found["differs"] < LEAST:
        return None
    said = "longer" if low > 1 else "shorter" if high < 1 else None
    apart = null is None or null["low"] is None or low > null["high"] or high < null["low"]
    return said if apart else None


def null_worlds(families: Sequence[Sequence[float]], worlds: int, seed: int) -> Row:
    """How often the rule speaks of any cell of a family when sides are swapped at random.

    Args:
        families: log ratios of each cell.
        worlds: trials.
        seed: of the swaps.
    """
    draw, bootstrap = np.random.default_rng(seed), Bootstrap(seed, 1000)
    spoke = 0
    for _ in range(worlds):
        found = [geometric([one * draw.choice((-1, 1)) for one in logs], bootstrap)
                 for logs in families]  # fmt: skip
        tested = [one for one in found if one["p"] is not None]
        for one, p in zip(tested, holm([one["p"] for one in tested]), strict=True):
            one["p_holm"] = p
        spoke += any(claim(one, None) in ("longer", "shorter") for one in tested)
    return {"worlds": worlds, "spoke": spoke, "share": spoke / worlds if worlds else None}


def break_even(rows: Sequence[Row]) -> Iterator[Row]:
    """Budgets of each method that cost less, more, or cannot be told, by whole intervals."""
    for method in METHODS:
        mine = [row for row in rows if row["backend"] == method and not row["kept"]]
        for cost in COSTS if mine else ():
            told: dict[str, list[int]] = {"cheaper": [], "dearer": [], "open": []}
            for row in mine:
                one = row["against_full"]["per_solved_ratio"][cost]
                low, high = one["low"], one["high"]
                if one["estimate"] is None:
                    where = "dearer" if not row["solved"] else "open"
                elif high is not None and high < 1:
                    where = "cheaper"
                else:
                    where = "dearer" if low is not None and low > 1 else "open"
                told[where].append(row["budget"])
            yield {"backend": method, "cost": cost, **told}


# ---------------------------------------------------------------- detectors


def detected(studies: Sequence[Study], cells: Mapping[str, Mapping[Cell, Mapping[str, Text]]]
             ) -> list[Row]:  # fmt: skip
    """Every detector over the methods' texts, and its false stops under full attention."""
    from scipy.stats import beta

    groups: dict[tuple[str, str, str], dict[tuple[Cell, str], Sample]] = defaultdict(dict)
    for study in studies:
        for sample in study.samples(build_detectors(study.config)).samples:
            if sample.detector != "none" and sample.penalty == "none" and is_usable(sample):
                key = (sample.dataset, sample.detector, sample.action)
                groups[key][cell_of(sample), sample.item_id] = sample
    rows = []
    for (level, detector, action), some in groups.items():
        full = [one for (cell, _), one in some.items() if cell[0] == "full"]
        false = sum(one.stopped_at is not None for one in full)
        bound = float(beta.ppf(0.975, false + 1, len(full) - false)) if false < len(full) else 1.0
        mine = [
            (under, cells[level][cell][item])
            for (cell, item), under in some.items()
            if is_method(cell) and item in cells[level].get(cell, {})
        ]
        fired = [(under, one) for under, one in mine if under.stopped_at is not None]
        tokens = sum(one.top.tokens for _, one in mine)
        rows.append({
            "dataset": level, "detector": detector, "action": action, "n": len(mine),
            "fired": len(fired), "false": false, "of_full": len(full), "false_high": bound,
            "same_bound": bound <= FALSE_STOPS,
            "saved": 1 - sum(u.paid_tokens or 0 for u, _ in mine) / tokens if tokens else None,
            "lost": sum(one.top.solved and not under.correct for under, one in fired),
            "gained": sum(bool(under.correct) and not one.top.solved for under, one in fired),
            "right_before": sum(
                (one.top.first_right or math.inf) <= (under.stopped_at or 0)
                for under, one in fired
            ),
        })  # fmt: skip
    return rows


# ---------------------------------------------------------------- the document


def read_stores(folders: Sequence[Path], worlds: int = 100) -> Row:
    """The document of some stores.

    Raises:
        InvalidValue: one that cannot be read so.
    """
    studies = [study for folder in folders for study in Study.each(folder)]
    caps = caps_of(studies)
    levels, missing = texts(studies)
    bootstrap = Bootstrap(0)
    threads = int(studies[0].manifest.get("threads") or 1)
    found: Row = {
        "caps": caps, "margin": MARGIN, "missing": missing, "threads": threads,
        "workers": studies[0].config.workers, "intensity": INTENSITY,
        "prices": asdict(Prices.of(studies[0])), "levels": {},
    }  # fmt: skip
    for level, cells in levels.items():
        full = cells[("full", None, False)]
        found["levels"][level] = {
            "full": {cap: alone([*full.values()], cap, threads, bootstrap) for cap in caps},
            "censored": sum(one.sample.status == "capped" for one in full.values()),
            "at": {cap: at_cap(cells, cap, threads, bootstrap) for cap in caps},
            "null_worlds": null_worlds(
                [solved_logs(paired(some, full)) for cell, some in cells.items()
                 if is_method(cell)], worlds, 1
            ),
        }  # fmt: skip
    found["detectors"] = detected(studies, levels)
    return json.loads(json.dumps(found))


def solved_logs(pairs: Sequence[Pair]) -> list[float]:
    """Log ratios of the lengths that both sides solve at the largest cap."""
    read = [(m.top, t.top) for m, t in pairs]
    return [math.log(m.tokens / t.tokens) for m, t in read if m.solved and t.solved]


def at_cap(
    cells: Mapping[Cell, Mapping[str, Text]], cap: int, threads: int, bootstrap: Bootstrap
) -> Row:
    """Rows of all cells of a level, selection, sparsity and break-even, at one cap."""
    full = cells[("full", None, False)]
    rows: list[Row] = []
    for cell, some in cells.items():
        if cell[0] == "full" or not some:
            continue
        name, budget, kept = cell
        told = {"backend": name, "budget": budget, "kept": kept}
        told["role"] = next(iter(some.values())).sample.role
        told |= alone([*some.values()], cap, threads, bootstrap)
        told["against_full"] = compared(paired(some, full), cap, bootstrap)
        told["solved"] = told["against_full"]["solved"]
        rows.append(told)
    null = next((row for row in rows if row["role"] == "null"), None)
    families: Sequence[Callable[[Row], bool]] = (
        lambda row: is_method((row["backend"], row["budget"], row["kept"])),
        lambda row: row["role"] == "control" or row["kept"],
    )
    for wanted in families:
        for outcome in ("ratio_solved", "ratio_all", "until_right", "after_right"):
            with_holm([row for row in rows if wanted(row)], outcome)
    for row in rows:
        other = None if null is None or row is null else null["against_full"]["ratio_solved"]
        row["said"] = claim(row["against_full"]["ratio_solved"], other)
    selection = [
        {"backend": cell[0], "budget": cell[1], **compared(
            paired(some, cells[("oracle", cell[1], False)]), cap, bootstrap)}
        for cell, some in cells.items()
        if is_method(cell) and ("oracle", cell[1], False) in cells
    ]  # fmt: skip
    return {
        "rows": rows,
        "selection": selection,
        "sparsity_free": sorted(row["budget"] for row in rows if is_free(row)),
        "break_even": [*break_even(rows)],
    }


def is_free(row: Row) -> bool:
    """Whether the oracle at this budget costs nothing, by whole intervals."""
    found = row["against_full"]
    low = found["change"]["low"]
    return (
        row["backend"] == "oracle"
        and found["ratio_solved"]["within"]
        and low is not None
        and low >= -LOSS
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The document; 2 where a store cannot be read so."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stores", nargs="+", type=Path, help="folders of measure_study.py")
    parser.add_argument("--worlds", type=int, default=100, help="trials of the null world")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args(argv)
    try:
        found = read_stores(args.stores, args.worlds)
    except InvalidValue as error:
        print(f"study_readings: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(found))
        return 0
    for level, told in found["levels"].items():
        for row in told["at"][str(max(found["caps"]))]["rows"]:
            one = row["against_full"]["ratio_solved"]
            print(f"{level} {row['backend']} {row['budget'] or ''}: {row['solved']} of {row['n']}, "
                  f"both solve {one['estimate']}, n {one['n']}: {row['said'] or '-'}")  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
