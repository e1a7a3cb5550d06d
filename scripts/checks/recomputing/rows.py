"""A report's row from samples, each field by its definition; a bound is where it may lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from recomputing.against import (
    SIX,
    Pair,
    Reading,
    ends,
    keys_ratio,
    length_ratio,
    lengths,
    seconds,
    spent,
    uncensored,
)
from recomputing.intervals import Floats, bootstrap_t, mcnemar, of_log_mean, tango, wilson
from recomputing.means import (
    always_some,
    grouped,
    mean,
    mean_interval,
    mean_known,
    most,
    sums_interval,
)
from recomputing.samples import Line, Sample

#: Some words, whichever.
WORDS = "words"

_ONE_TWO_FIVE = tuple(digit * 10**power for power in range(4) for digit in (1, 2, 5))

#: Every field that is recomputed here; `cheaper` and `claims` in their own modules.
FIELDS = frozenset(
    """
    n samples problems samples_per_problem finished capped stopped errors out_of_memory missing
    fired at_positions pairs pairs_missing pairs_censored pairs_same role caps claims
    accuracy accuracy_low accuracy_high avg_at_k pass_at_k pass_at pass_at_low pass_at_high
    accuracy_change accuracy_change_low accuracy_change_high accuracy_change_p
    solved_lost solved_gained solved_by_both
    mean_tokens mean_tokens_low mean_tokens_high mean_paid_tokens reused_tokens
    length_ratio length_ratio_low length_ratio_high length_ratio_p length_ratio_differs
    length_ratio_of_sums
    length_ratio_finished length_ratio_capped length_ratio_stopped
    length_ratio_solved length_ratio_solved_low length_ratio_solved_high
    length_ratio_solved_p length_ratio_solved_differs
    token_savings token_savings_low token_savings_high token_savings_correct
    token_savings_incorrect
    detector_pairs detector_pairs_missing detector_tokens detector_tokens_without
    detector_solved detector_solved_differing
    detector_accuracy_change detector_accuracy_change_low detector_accuracy_change_high
    detector_accuracy_change_p detector_solved_lost detector_solved_gained
    wasted_loop wasted_tail wasted_loop_savings wasted_loop_savings_low wasted_loop_savings_high
    wasted_tail_savings wasted_tail_savings_low wasted_tail_savings_high
    penalty_pairs penalty_pairs_missing penalty_length_ratio penalty_length_ratio_low
    penalty_length_ratio_high penalty_length_ratio_p penalty_length_ratio_differs
    penalty_accuracy_change penalty_accuracy_change_low
    penalty_accuracy_change_high penalty_accuracy_change_p penalty_solved_lost
    penalty_solved_gained penalty_repetition_change
    keys_kept_max keys_read_mean keys_read_max dense_layer_keys_read_mean keys_read
    keys_read_per_solved keys_read_per_solved_low keys_read_per_solved_high
    keys_read_per_solved_ratio keys_read_per_solved_ratio_low keys_read_per_solved_ratio_high
    keys_read_per_solved_ratio_p keys_read_per_solved_ratio_differs
    seconds_null_why prefill_sec decode_sec end_to_end_sec end_to_end_ratio sec_per_solved
    sec_per_solved_ratio
    cache_bytes_peak cache_byte_sec cache_byte_sec_ratio
    compression_ratio compression_ratio_low compression_ratio_high compression_curve
    repetition_rate cheaper
    """.split()  # noqa: SIM905 - a hundred quoted names are no easier to read
)

#: Fields of a row at a smaller cap.
AT_CAP = (
    *("capped", "accuracy", "accuracy_low", "accuracy_high"),
    *("accuracy_change", "accuracy_change_low", "accuracy_change_high", "accuracy_change_p"),
    *("solved_lost", "solved_gained", "solved_by_both", "length_ratio_of_sums"),
    *(
        f"{ratio}{part}"
        for ratio in ("length_ratio", "length_ratio_solved", "keys_read_per_solved_ratio")
        for part in ("", "_low", "_high", "_p", "_differs")
    ),
)

SECONDS = (
    *("prefill_sec", "decode_sec", "end_to_end_sec", "end_to_end_ratio", "sec_per_solved"),
    *("sec_per_solved_ratio", "cache_byte_sec", "cache_byte_sec_ratio"),
)


def row(
    line: Line, full: Line, without: Line | None, unpenalised: Line | None, reading: Reading
) -> dict[str, Any]:
    """Every field of a row but `cheaper` and `claims`, which need its neighbours, and `caps`.

    Args:
        line: the configuration.
        full: full attention on the same problems, no detector.
        without: the same configuration without its detector.
        unpenalised: the same backend, budget and detector without its penalty.
        reading: how the store is read.
    """
    samples = list(line.samples.values())
    found = counts(samples) | {"role": line.role, "penalty_length_ratio_differs": 0}
    if found["errors"] or found["missing"]:
        return found | unscored(len(samples), without is not None, unpenalised is not None)
    pairs = both(line, full)
    comparable = uncensored(pairs)
    found |= {
        "pairs": len(pairs),
        "pairs_missing": len(samples) - len(pairs),
        "pairs_censored": len(pairs) - len(comparable),
        "pairs_same": sum(a.ids == b.ids for a, b in pairs),
        "full_solves": any(b.solved for _, b in comparable),
    }
    found |= accuracy(samples) | change("accuracy_change", "solved", pairs)
    found |= (
        length(samples, reading) | lengths(comparable, reading) | costs(samples) | text(samples)
    )
    found |= keys_ratio(comparable, reading) | seconds(comparable)
    settings = {one.setting for one in samples} | {its.setting for _, its in pairs}
    if None in settings or len(settings) > 1:
        # Decoded in several sweeps or in batches of different size, or nobody knows.
        found |= {field: None for field in found if field in SECONDS}
        found["seconds_null_why"] = WORDS
    if without is not None:
        found |= savings(both(line, without), full, len(samples))
    if unpenalised is not None:
        found |= penalty(both(line, unpenalised), len(samples), reading)
    return found


def unscored(samples: int, watched: bool, penalised: bool) -> dict[str, Any]:
    """Where some are missing none is scored and none has a partner."""
    zeros = ["n", "pairs", "pairs_same", "pairs_censored", "solved_by_both", "reused_tokens"]
    ratios = ("length_ratio", "length_ratio_solved", "keys_read_per_solved_ratio")
    zeros += [f"{ratio}_differs" for ratio in ratios]
    found: dict[str, Any] = {"pairs_missing": samples, "compression_curve": []}
    if watched:
        zeros += ["detector_pairs", "detector_tokens", "detector_tokens_without"]
        zeros += ["detector_solved", "detector_solved_differing"]
        found["detector_pairs_missing"] = samples
    if penalised:
        zeros += ["penalty_pairs"]
        found["penalty_pairs_missing"] = samples
    return found | dict.fromkeys(zeros, 0)


def at_cap(line: Line, full: Line, reading: Reading) -> dict[str, Any]:
    """What a row is at a smaller cap, but its `claims`.

    Args:
        line: the configuration, its samples cut there.
        full: full attention on the same problems, no detector.
        reading: at which cap the store is read.
    """
    found = row(line, full, None, None, reading)
    return {"factor": reading.factor} | {field: found.get(field) for field in AT_CAP}


def both(line: Line, other: Line) -> list[Pair]:
    """The samples that both have, and that were decoded in both."""
    pairs = ((one, other.samples.get(at)) for at, one in line.samples.items())
    return [(one, its) for one, its in pairs if its is not None and one.usable and its.usable]


def counts(samples: Sequence[Sample]) -> dict[str, Any]:
    """How many ended in which way."""
    ended = [one.status for one in samples]
    per_problem = max(one.index for one in samples) + 1
    return {
        "n": sum(one.usable for one in samples),
        "samples": len(samples),
        "problems": len({one.problem for one in samples}),
        "samples_per_problem": per_problem,
        "finished": ended.count("finished"),
        "capped": ended.count("capped"),
        "stopped": ended.count("stopped"),
        "errors": ended.count("error") + ended.count("out_of_memory"),
        "out_of_memory": ended.count("out_of_memory"),
        "missing": ended.count("missing"),
        **{field: {} for field in ("pass_at", "pass_at_low", "pass_at_high")},
        "fired": sum(one.fired for one in samples),
        "at_positions": sum(one.at_end for one in samples),
    }


def accuracy(samples: Sequence[Sample]) -> dict[str, Any]:
    """Share solved, with Wilson's interval; several samples a problem: avg@k and pass@k."""
    solved = sum(one.solved for one in samples)
    by_problem = grouped(samples, lambda one: one.problem)
    k = max(map(len, by_problem))
    found: dict[str, Any] = {"accuracy": solved / len(samples), "avg_at_k": None, "pass_at_k": None}
    if k == 1:
        found["accuracy_low"], found["accuracy_high"] = wilson(solved, len(samples))
    else:
        found["avg_at_k"] = mean(mean(one.solved for one in group) for group in by_problem)
        found["pass_at_k"] = mean(any(one.solved for one in group) for group in by_problem)
        found |= pass_at(k, [sum(one.solved for one in group) for group in by_problem])
    return found


def pass_at(drawn: int, solved: Sequence[int]) -> dict[str, Any]:
    """The chance that k of the samples drawn hold a correct one, mean over problems."""
    steps = sorted({k for k in (*_ONE_TWO_FIVE, drawn) if k <= drawn})
    found: dict[str, dict[str, Any]] = {"pass_at": {}, "pass_at_low": {}, "pass_at_high": {}}
    for k in steps:
        chances = [1 - math.comb(drawn - right, k) / math.comb(drawn, k) for right in solved]
        low, high = mean_interval(list(enumerate(chances)), lambda at: at[1], lambda at: at[0])
        found["pass_at"][str(k)] = mean(chances)
        found["pass_at_low"][str(k)], found["pass_at_high"][str(k)] = low, high
    return found


def change(field: str, solved: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Accuracy against that of the same problems elsewhere."""
    if not pairs:
        return {}
    lost = sum(b.solved and not a.solved for a, b in pairs)
    gained = sum(a.solved and not b.solved for a, b in pairs)
    found: dict[str, Any] = {
        field: (gained - lost) / len(pairs),
        f"{solved}_lost": lost,
        f"{solved}_gained": gained,
    }
    if len({a.problem for a, _ in pairs}) == len(pairs):
        found[f"{field}_low"], found[f"{field}_high"] = tango(lost, gained, len(pairs))
        found[f"{field}_p"] = mcnemar(lost, gained)
    return found


def length(samples: Sequence[Sample], reading: Reading) -> dict[str, Any]:
    """Tokens that came out, and that were paid for."""
    groups = grouped(samples, lambda one: one.problem)
    units = [(float(sum(one.tokens for one in group)), float(len(group))) for group in groups]
    found: dict[str, Any] = {}
    if len(units) >= SIX and any(total for total, _ in units):
        found |= ends("mean_tokens", *bootstrap_t(units, of_log_mean, len(units), reading.seed))
    return found | {
        "mean_tokens": mean(one.tokens for one in samples),
        "mean_paid_tokens": mean(one.paid for one in samples),
        "reused_tokens": sum(one.reused for one in samples),
    }


def costs(samples: Sequence[Sample]) -> dict[str, Any]:
    """Keys, bytes and seconds, and per problem solved."""
    solved = sum(one.solved for one in samples)
    taken = [spent(one) for one in samples]
    found: dict[str, Any] = {
        "keys_read": mean(one.keys for one in samples),
        "keys_read_mean": mean_known(one.read_mean for one in samples),
        "dense_layer_keys_read_mean": mean_known(one.dense_mean for one in samples),
        "keys_kept_max": most(one.kept_max for one in samples),
        "keys_read_max": most(one.read_max for one in samples),
        "cache_bytes_peak": max(one.bytes_peak for one in samples),
        "prefill_sec": mean_known(one.prefill for one in samples),
        "decode_sec": mean_known(one.decode for one in samples),
        "end_to_end_sec": mean_known(taken),
        "cache_byte_sec": mean_known(one.byte_sec for one in samples),
    }
    if solved:
        found["keys_read_per_solved"] = sum(one.keys for one in samples) / solved
        low, high = sums_interval(samples, lambda one: (one.keys, one.solved))
        found |= {"keys_read_per_solved_low": low, "keys_read_per_solved_high": high}
    # A row that took all its tokens from full attention has no seconds of its own.
    timed = [(sec, one.solved) for sec, one in zip(taken, samples, strict=True) if sec is not None]
    if any(solved for _, solved in timed):
        found["sec_per_solved"] = sum(sec for sec, _ in timed) / sum(solved for _, solved in timed)
    return found


def text(samples: Sequence[Sample]) -> dict[str, Any]:
    """Compressed over original bytes of the outputs, and who repeats a block 20 times."""
    whole = [(s.problem, s.curve[-1][2] / s.curve[-1][1]) for s in samples if s.curve[-1][1]]
    low, high = mean_interval(whole, lambda one: one[1], lambda one: one[0])
    points = sorted({at for one in samples for at, raw, _ in one.curve if raw})
    curve = []
    for at in points:
        there = [one for one in samples if one.tokens >= at]
        measured = [small / raw for s in there for n, raw, small in s.curve if n == at and raw]
        if len(measured) == len(there):
            curve.append((at, mean(measured), len(there)))
    return {
        "compression_ratio": mean_known(ratio for _, ratio in whole),
        "compression_ratio_low": low,
        "compression_ratio_high": high,
        "repetition_rate": mean(one.repeated for one in samples),
        "wasted_loop": sum(one.loop for one in samples),
        "wasted_tail": sum(one.tail for one in samples),
        "compression_curve": curve,
    }


def savings(pairs: Sequence[Pair], full: Line, n: int) -> dict[str, Any]:
    """What a detector saves and changes, against the same configuration without it."""
    solved = [b for _, b in pairs if b.solved]
    texts = {at: one.ids for at, one in full.samples.items() if one.usable}
    found: dict[str, Any] = {
        "detector_solved": len(solved),
        "detector_solved_differing": sum(texts.get(b.at) != b.ids for b in solved),
        "detector_pairs": len(pairs),
        "detector_pairs_missing": n - len(pairs),
        "detector_tokens": sum(a.paid for a, _ in pairs),
        "detector_tokens_without": sum(b.paid for _, b in pairs),
    }
    for field, part in (
        ("token_savings", list(pairs)),
        ("token_savings_correct", [(a, b) for a, b in pairs if b.solved]),
        ("token_savings_incorrect", [(a, b) for a, b in pairs if not b.solved]),
    ):
        if part:
            found[field] = 1 - sum(a.paid for a, _ in part) / sum(b.paid for _, b in part)

    def of(sums: Floats) -> Floats:
        return 1 - sums[0] / sums[1]

    low, high = sums_interval(
        pairs,
        lambda pair: (pair[0].paid, pair[1].paid),
        of,
        problem=lambda pair: pair[0].problem,
    )
    found |= {"token_savings_low": low, "token_savings_high": high}
    for kind in ("loop", "tail"):
        field = f"wasted_{kind}_savings"
        wasted = sum(getattr(b, kind) for _, b in pairs)
        if wasted:
            found[field] = 1 - sum(getattr(a, kind) for a, _ in pairs) / wasted
            clusters = [
                tuple(sum(getattr(pair[at], kind) for pair in one) for at in (0, 1))
                for one in grouped(pairs, lambda pair: pair[0].problem)
            ]
            if always_some(clusters):
                found[f"{field}_low"], found[f"{field}_high"] = sums_interval(
                    pairs,
                    lambda pair, kind=kind: (getattr(pair[0], kind), getattr(pair[1], kind)),
                    of,
                    problem=lambda pair: pair[0].problem,
                )
    return found | change("detector_accuracy_change", "detector_solved", pairs)


def penalty(pairs: Sequence[Pair], n: int, reading: Reading) -> dict[str, Any]:
    """What a penalty changes."""
    repeats = mean(a.repeated for a, _ in pairs) - mean(b.repeated for _, b in pairs)
    return {
        "penalty_pairs": len(pairs),
        "penalty_pairs_missing": n - len(pairs),
        "penalty_repetition_change": repeats,
        **length_ratio("penalty_length_ratio", pairs, reading),
        **change("penalty_accuracy_change", "penalty_solved", pairs),
    }
