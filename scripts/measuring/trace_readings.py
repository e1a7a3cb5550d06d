"""What the outputs in a store of the reasoner's say, counted line by line by a program.

    lil sweep --out lil-out/demo
    python scripts/measuring/trace_readings.py lil-out/demo           # tables and sentences
    python scripts/measuring/trace_readings.py lil-out/demo --json    # the counts behind them

Nothing is decoded. The store is only read, but for its cache.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import trace_sentences

from attention.errors import InvalidValue
from experiments.grid.answers import last_boxed
from experiments.grid.detectors import build_detectors
from experiments.reasoner import RECIPES, SPLITS, Problem, problem
from experiments.reasoner.judge import ChainReading, pieces, read
from experiments.report.statistics import change_p, mcnemar
from experiments.store.samples.repetition import exact
from experiments.store.samples.sample import Sample, is_usable
from experiments.store.study import Study

Row = dict[str, Any]
#: What a text that knows its answer has still to write.
CLOSING = "\n\n</think>\n\nThe answer is \\boxed{1}.<eos>"


def is_sparse(sample: Sample) -> bool:
    """Whether it is a sparse method's: no control and no null."""
    return sample.budget is not None and sample.role == "method"


@dataclass(frozen=True)
class Output:
    """A trace as decoded, and what it says.

    Args:
        sample, problem, reading: the trace, what it was asked, what it says.
        loop: tokens at its end that only repeat, exactly.
    """

    sample: Sample
    problem: Problem
    reading: ChainReading
    loop: int

    @property
    def end(self) -> str:
        """How it ends: "solved", "cut" at its cap, "gave up" or "wrong"."""
        if self.sample.correct:
            return "solved"
        if self.sample.status == "capped":
            return "cut"
        return "gave up" if self.reading.gave_up else "wrong"

    def is_right(self, value: int | None) -> bool:
        """Whether a value is the answer."""
        return str(value) == self.problem.answer


def main(argv: Sequence[str] | None = None) -> int:
    """Tables, or one JSON document; 2 where the store cannot be read so."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", type=Path, help="folder of a sweep of the reasoner's problems")
    parser.add_argument("--detector", help="these instead of the sweep's, as guardian,cycle:answer")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args(argv)
    try:
        study = Study.open(args.store)
        if args.detector is not None:
            names = tuple(args.detector.split(","))
            study = replace(study, config=replace(study.config, detectors=names))
        document = counted(study)
    except InvalidValue as error:
        print(f"trace_readings: {error}", file=sys.stderr)
        return 2
    for notice in dict.fromkeys(study.said):
        print(f"trace_readings: {notice}", file=sys.stderr)
    print(json.dumps(document) if args.json else trace_sentences.page(document))
    return 0


def counted(study: Study) -> dict[str, Any]:
    """Everything that is counted of a study.

    Raises:
        InvalidValue: it is of other problems.
    """
    samples = study.samples(build_detectors(study.config)).samples
    plain = [one for one in samples if one.detector == "none"]
    told = outputs(study, [one for one in plain if is_usable(one)])
    bare = [one for one in told if one.sample.penalty == "none"]
    sparse = [one for one in bare if is_sparse(one.sample)]
    full = [one for one in bare if one.sample.backend == "full"]
    rows = [
        {"dataset": level, "backend": backend, "budget": budget, "penalty": penalty}
        | {"role": group[0].sample.role}
        | answers(group)
        | unsolved(group)
        | checks(group)
        for (level, backend, budget, penalty), group in groups(told).items()
    ]
    document = {
        "store": study.folder.name,
        "missing": len(plain) - len(told),
        "rows": rows,
        "kinds": {"full": kinds(full), "sparse": kinds(sparse)},
        "excess": excess(sparse, full),
        "detectors": detectors(samples, bare),
    }
    return document | {"sentences": trace_sentences.sentences(document)}


def outputs(study: Study, samples: Iterable[Sample]) -> list[Output]:
    """Traces read.

    Raises:
        InvalidValue: one is of no problem of the reasoner.
    """
    asked: dict[str, Problem] = {}
    found = []
    for sample in samples:
        record = study.store.get(sample.record or "")
        assert record is not None
        trace = record.trace()
        if sample.item_id not in asked:
            asked[sample.item_id] = asked_by(sample.item_id, trace.prompt_bytes)
        drawn = asked[sample.item_id]
        reading = read(drawn, trace.pieces[: sample.tokens])
        found.append(Output(sample, drawn, reading, exact(trace.new_ids[: sample.tokens])))
    return found


def asked_by(item_id: str, prompt: bytes) -> Problem:
    """The problem an item names.

    Raises:
        InvalidValue: it names none, or another than stands in the prompt.
    """
    level, _, rest = item_id.partition("/")
    split, _, index = rest.partition("/")
    if level in RECIPES and split in SPLITS and index.isdecimal():
        drawn = problem(level, split, int(index))
        if drawn.prompt.strip().encode() in prompt:
            return drawn
    raise InvalidValue("store", item_id, "traces of the reasoner's own problems")


def groups(told: Iterable[Output]) -> dict[tuple[Any, ...], list[Output]]:
    """By level, backend, budget and penalty; those of all levels, and of all sparse runs, too."""
    found: dict[tuple[Any, ...], list[Output]] = {}
    for one in told:
        sample = one.sample
        cell = (sample.backend, sample.budget, sample.penalty)
        for level in (sample.dataset, "all"):
            found.setdefault((level, *cell), []).append(one)
            if is_sparse(sample):
                found.setdefault((level, "all", "all", sample.penalty), []).append(one)
    # What is pooled behind what it is made of; otherwise in the order of the plan.
    return dict(sorted(found.items(), key=lambda one: (one[0][0] == "all", one[0][1] == "all")))


def answers(group: Sequence[Output]) -> Row:
    """What is stated of the goal, and what comes out in the end."""
    right = {
        name: [one.is_right(getattr(one.reading, name)) for one in group]
        for name in ("first_stated", "last_stated")
    }
    solved = [bool(one.sample.correct) for one in group]
    moved = [(now, then) for now, then in zip(right["first_stated"], solved, strict=True)]
    at = [one.reading.first_right_at for one in group]
    known = [(n, one.reading.tokens) for n, one in zip(at, group, strict=True) if n is not None]
    closing = len(pieces(CLOSING))
    stopped = [
        one.reading.tokens
        if one.reading.first_stated_at is None
        else min(one.reading.tokens, one.reading.first_stated_at + closing)
        for one in group
    ]
    tokens = sum(one.reading.tokens for one in group)
    gained, lost = moved.count((True, False)), moved.count((False, True))
    changes = [
        (one.sample.item_id, int(now) - int(then))
        for one, (now, then) in zip(group, moved, strict=True)
    ]
    return {
        "n": len(group),
        "solved": sum(solved),
        "first_right": sum(right["first_stated"]),
        "last_right": sum(right["last_stated"]),
        "ever_right": len(known),
        # Of taking the first value stated instead of the answer.
        "first_gained": gained,
        "first_lost": lost,
        "first_p": mcnemar(lost, gained),
        "first_p_problems": change_p(changes, 0),
        "first_tokens_saved": 1 - sum(stopped) / tokens if tokens else None,
        "tokens": tokens,
        "tokens_to_right": sum(n for n, _ in known),
        "tokens_after_right": sum(all_ - n for n, all_ in known),
        "right_at": sum(n / all_ for n, all_ in known) / len(known) if known else None,
    }


def unsolved(group: Sequence[Output]) -> Row:
    """How outputs that are not solved end, and what they write behind the last that was right."""
    ends = {end: [one for one in group if one.end == end] for end in ("cut", "gave up", "wrong")}
    cut = ends["cut"]
    wasted = {end: sum(one.reading.wasted for one in found) for end, found in ends.items()}
    inside = {
        name: sum(min(getattr(one.sample, name) or 0, one.reading.wasted) for one in cut)
        for name in ("wasted_loop", "wasted_tail")
    }
    return {
        **{end.replace(" ", "_"): len(found) for end, found in ends.items()},
        "once_right": sum(
            one.reading.first_right_at is not None and not one.sample.correct for one in group
        ),
        "wasted_cut": wasted["cut"],
        "wasted_ended": wasted["gave up"] + wasted["wrong"],
        "loops_in_wasted_cut": inside["wasted_loop"],
        "tails_in_wasted_cut": inside["wasted_tail"],
    }


def checks(group: Sequence[Output]) -> Row:
    """What is wrong, and what checks make of it."""

    def total(of: Callable[[ChainReading], int]) -> int:
        return sum(of(one.reading) for one in group)

    return {
        "right_to_wrong": total(lambda r: r.right_to_wrong),
        "wrong_to_right": total(lambda r: r.wrong_to_right),
        "wrong_to_wrong": total(lambda r: r.wrong_to_wrong),
        "wrong_names": total(lambda r: r.wrong),
        "with_wrong": total(lambda r: r.wrong > 0),
        "disagreements": total(lambda r: sum(line.disagrees for line in r.lines)),
        "with_disagreement": total(lambda r: any(line.disagrees for line in r.lines)),
        "misread": total(lambda r: sum(line.misread for line in r.lines)),
        "with_misread": total(lambda r: any(line.misread for line in r.lines)),
        "with_forgotten": total(lambda r: r.forgotten > 0),
    }


def kinds(group: Sequence[Output]) -> dict[str, int]:
    """Tokens by what their lines do."""
    found: Counter[str] = Counter()
    for one in group:
        found.update(one.reading.by_kind(one.loop))
    return dict(found)


def excess(sparse: Sequence[Output], full: Sequence[Output]) -> Row:
    """Where the tokens are that sparse outputs have beyond full attention's on the same problem."""
    partner = {one.sample.pair: one for one in full if one.sample.penalty == "none"}
    pairs = [(one, partner[one.sample.pair]) for one in sparse if one.sample.pair in partner]
    by_end: Counter[str] = Counter()
    by_kind: Counter[str] = Counter()
    shorter: Counter[str] = Counter()
    before = after = both = longer = forgot = 0
    for one, other in pairs:
        more = one.reading.tokens - other.reading.tokens
        if more < 0:
            shorter[one.end] += 1
        if more > 0:
            longer += 1
            forgot += one.reading.forgotten > 0
            by_end[one.end] += more
            mine, theirs = (x.reading.by_kind(x.loop) for x in (one, other))
            by_kind.update({kind: max(0, mine[kind] - theirs[kind]) for kind in mine})
        here, there = one.reading.first_right_at, other.reading.first_right_at
        if here is not None and there is not None:
            both += 1
            before += here - there
            after += more - (here - there)
    return {
        "pairs": len(pairs),
        "longer": longer,
        "longer_forgotten": forgot,
        "by_end": dict(by_end),
        "by_kind": dict(by_kind),
        "shorter": shorter.total(),
        "shorter_by_end": dict(shorter),
        "both_right": both,
        "more_before_right": before,
        "more_after_right": after,
    }


def detectors(samples: Sequence[Sample], told: Sequence[Output]) -> list[Row]:
    """What detectors do to the sparse outputs: what they spare, and what stands there by then."""
    plain = {one.sample.run: one for one in told if is_sparse(one.sample)}
    found: dict[tuple[str, str], list[tuple[Sample, Output]]] = defaultdict(list)
    for sample in samples:
        if sample.detector != "none" and sample.run in plain and is_usable(sample):
            found[sample.detector, sample.action].append((sample, plain[sample.run]))
    golds: dict[str, dict[str, str]] = defaultdict(dict)
    for one in told:
        golds[one.sample.dataset][one.sample.item_id] = one.problem.answer
    return [
        {"detector": name, "action": action} | detected(pairs, golds)
        for (name, action), pairs in found.items()
    ]


def detected(pairs: Sequence[tuple[Sample, Output]], golds: dict[str, dict[str, str]]) -> Row:
    """Of one detector and what it does.

    Args:
        pairs: each output under it and as decoded.
        golds: the answers of all problems, by level.
    """
    fired = [(under, one) for under, one in pairs if under.stopped_at is not None]
    spared: Counter[str] = Counter()
    wasted: Counter[str] = Counter()
    for under, one in pairs:
        end = "cut" if one.end == "cut" else "ended"
        behind = 0 if under.stopped_at is None else one.reading.tokens - under.stopped_at
        wasted[end] += one.reading.wasted
        spared[end] += min(one.reading.wasted, behind)
    answered, luck = 0, 0.0
    for under, one in fired:
        given = last_boxed(under.text or "")
        if given is not None:
            answered += 1
            level = golds[one.sample.dataset]
            others = [gold for item, gold in level.items() if item != one.sample.item_id]
            luck += others.count(given.strip()) / len(others) if others else 0.0
    return {
        "n": len(pairs),
        "fired": len(fired),
        "wasted_cut": wasted["cut"],
        "wasted_ended": wasted["ended"],
        "spared_cut": spared["cut"],
        "spared_ended": spared["ended"],
        "fired_solved": sum(bool(one.sample.correct) for _, one in fired),
        "lost": sum(bool(one.sample.correct) and not under.correct for under, one in fired),
        "gained": sum(bool(under.correct) and not one.sample.correct for under, one in fired),
        # What the text had stated of the goal when the detector fired: ever, and last.
        "once_right": sum(
            (one.reading.first_right_at or one.reading.tokens + 1) <= (under.stopped_at or 0)
            for under, one in fired
        ),
        "stated_right": sum(
            one.is_right(one.reading.stated(u.stopped_at or 0)) for u, one in fired
        ),
        "answered": answered,
        "answered_right": sum(bool(under.correct) for under, _ in fired),
        "luck": luck,
    }


if __name__ == "__main__":
    raise SystemExit(main())
