"""Runs of one problem by two runtimes beside each other, and what each runtime took."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from choice_ties import TiedChoices
from rounded_readings import RoundedReadings

from experiments.store.samples.sample import Sample
from lil import Trace


@dataclass(frozen=True)
class RunPair:
    """One problem under one method, as both runtimes decoded it.

    Args:
        method: and budget.
        item: the problem.
        kind: "equal"; "score tie"; "other rounding", which gives either token; "traced choice" or
            "untraced choice" of blocks at a tie; "parts"; of what is not stored or failed
            "missing".
        tokens: that are common.
        gap: between the scores where they part; None where they do not.
        whole: whether both outputs are equally long, so that keys and answers can be compared.
        readings: of the common text with other last bits; None where nobody looked.
        choices: of blocks in the common text; None where nobody looked.
        keys: whether equal tokens read the same keys per step.
        answers: whether equal tokens are the same answer, judged alike.
    """

    method: str
    item: str
    kind: str
    tokens: int
    gap: float | None
    keys: bool
    answers: bool
    whole: bool = True
    readings: RoundedReadings | None = None
    choices: TiedChoices | None = None


@dataclass(frozen=True)
class RuntimeCost:
    """What one runtime took for one method.

    Args:
        method: and budget.
        runtime: that decoded.
        problems, solved: how many.
        tokens: of all outputs.
        tokens_per_second: of prefill and decode.
        keys_per_solved, seconds_per_solved: None where nothing is solved.
    """

    method: str
    runtime: str
    problems: int
    solved: int
    tokens: int
    tokens_per_second: float | None
    keys_per_solved: float | None
    seconds_per_solved: float | None


def parts_at(one: Trace, two: Trace) -> int | None:
    """The step at which two outputs part; None where they are equal as far as both go.

    One may have been cut earlier: caps follow from how long full attention's output was in the same
    runtime.
    """
    pairs = zip(one.new_ids, two.new_ids, strict=False)
    at = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return None if at == min(one.tokens, two.tokens) else at


def same_keys(one: Trace, two: Trace) -> bool:
    """Whether two outputs of the same tokens read the same keys per step, to rounding.

    Of outputs that are not equally long nothing is known, and nothing said.
    """
    if one.tokens != two.tokens:
        return True
    means = (one.keys_read_mean or 0.0, two.keys_read_mean or 0.0)
    return one.keys_read_max == two.keys_read_max and math.isclose(*means, rel_tol=1e-6)


def same_answers(one: Trace, two: Trace, mine: Sample, theirs: Sample) -> bool:
    """Whether two outputs of the same tokens are the same answer; of unequally long ones it may
    not be.
    """
    return one.tokens != two.tokens or (mine.answer, mine.correct) == (
        theirs.answer,
        theirs.correct,
    )


def cost_of(method: str, runtime: str, samples: Sequence[Sample]) -> RuntimeCost:
    """What the samples of a method took; those that failed or are missing are left out."""
    usable = [one for one in samples if one.tokens is not None]
    seconds = sum((one.prefill_sec or 0.0) + (one.decode_sec or 0.0) for one in usable)
    tokens, solved = sum(one.tokens or 0 for one in usable), sum(bool(s.correct) for s in usable)
    keys = sum(one.keys_read or 0.0 for one in usable)
    return RuntimeCost(
        method,
        runtime,
        len(usable),
        solved,
        tokens,
        tokens / seconds if seconds else None,
        keys / solved if solved else None,
        seconds / solved if solved else None,
    )


def counts_of(pairs: Sequence[RunPair]) -> dict[str, dict[str, int]]:
    """By method, how many pairs are what, and how many have other keys or answers."""
    found: dict[str, dict[str, int]] = {}
    for one in pairs:
        names = (
            "equal",
            "score tie",
            "other rounding",
            "traced choice",
            "untraced choice",
            "parts",
            "missing",
            "cut",
            "other_keys",
            "other_answers",
            "tokens",
        )
        of = found.setdefault(one.method, dict.fromkeys(names, 0))
        of[one.kind] += 1
        of["tokens"] += one.tokens
        if one.kind == "equal":
            of["cut"] += not one.whole
            of["other_keys"] += not one.keys
            of["other_answers"] += not one.answers
    return found


def is_good(pairs: Sequence[RunPair]) -> bool:
    """Whether nothing parts but at ties that are shown, and equal tokens are equal in all else."""
    return all(
        one.kind in ("score tie", "other rounding", "traced choice")
        or (one.kind == "equal" and one.whole and one.keys and one.answers)
        for one in pairs
    )


def why(one: RunPair) -> str:
    """Why two runs part, as far as it is known."""
    if one.kind == "score tie":
        return "a tie"
    if one.kind == "other rounding" and one.readings is not None:
        read = one.readings
        return (
            f"of {read.readings} readings with other last bits {read.mine} have this token and "
            f"{read.theirs} the other"
        )
    if one.choices is None or not one.choices.count:
        return "NO TIE"
    some = f"{one.choices.count} choices at a tie, the closest {one.choices.closest:.1e} apart"
    shown = "they give the other token" if one.choices.traced else "NOT TRACED to them"
    return f"{some}, {shown}"
