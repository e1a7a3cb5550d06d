"""From a stored trace to its samples: cut at the cap, and at the verdict of every detector.

A detector changes no token before it fires, and a longer trace holds every shorter one, so one
decode serves all caps and all detectors. Costs of a cut trace are those the run had at that token.

After the verdict of a detector that acts a run differs from the plain one, so where it fires the
run is decoded again, with the detector at work; of the others the plain trace is the run.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from experiments.grid.identity import digest
from experiments.grid.plan import PlannedProblem, Run
from experiments.grid.scoring import NO_SCORERS, Judgement, Scorers, judged, shown
from experiments.grid.sources import code
from experiments.store.files.records import Record
from experiments.store.samples.repetition import exact, loops, repeats, tolerant
from experiments.store.samples.sample import Sample, Shorter
from experiments.store.store import Store
from lil import Detector, Meter, Trace, Verdict, Watcher
from lil.compression.curves import Point
from lil.detectors import asked, replayed
from lil.detectors.agreement import Agreement
from lil.detectors.base.asking import Trial


def samples_of(
    run: Run,
    record: Record | None,
    caps: Mapping[int | None, int],
    penalty: str,
    detectors: Sequence[tuple[str, Detector]],
    store: Store,
    scorers: Scorers = NO_SCORERS,
) -> Iterator[Sample]:
    """The run's samples, without a detector and with each."""
    plain = blank(run, penalty)
    cap = [*caps.values()][-1]
    if record is None or record.failed or not record.covers_cap(cap):
        if record is not None and record.failed:
            plain = _failed(plain, record)
        yield plain
        for label, detector in detectors:
            yield replace(plain, detector=label, action=detector.action.name)
        return
    trace = record.trace()
    whole = min(cap, trace.tokens)
    judge = partial(measured, scorers=scorers)
    plain = _with_waste(judge(plain, run.problem, record, trace, whole), trace)
    plain = replace(plain, shorter=_shorter(plain, run.problem, trace, caps, scorers))
    plain = replace(plain, first_right=_first_right(plain, trace))
    yield plain
    for label, detector in detectors:
        sample = replace(blank(run, penalty), detector=label, action=detector.action.name)
        watcher = _watched(trace, detector, cap)
        verdict, spent = watcher.verdict, asked(watcher.seen())
        if verdict is None:
            same = replace(plain, detector=sample.detector, action=sample.action)
            same = _with_questions(same, spent)
            yield _untimed(same) if continues_after_verdict(detector) else same
        elif not continues_after_verdict(detector):
            stopped = judge(sample, run.problem, record, trace, verdict.token, verdict)
            stopped = _with_questions(stopped, spent)
            yield _with_waste_left(stopped, plain, verdict)
        else:
            later = acted_record(store, Firing(run, record, cap, detector, verdict))
            if later is not None:
                sample = _acted(sample, run.problem, later, verdict, scorers)
            if later is not None and not later.failed:
                sample = _with_waste_left(sample, plain, verdict)
            yield sample


def blank(run: Run, penalty: str) -> Sample:
    """A run of which nothing is known yet, missing so far, under no detector."""
    configuration = run.configuration
    return Sample(
        model=configuration.model,
        dataset=configuration.dataset,
        item_id=run.item_id,
        sample_index=run.sample_index,
        backend="full again" if configuration.is_again else configuration.backend["name"],
        backend_params=tuple(sorted(configuration.parameters.items())),
        budget=configuration.budget,
        penalty=penalty,
        role=configuration.role,
        gold=shown(run.problem.gold),
    )


def _shorter(
    plain: Sample,
    problem: PlannedProblem,
    trace: Trace,
    caps: Mapping[int | None, int],
    scorers: Scorers,
) -> tuple[Shorter, ...]:
    """What each cap but the largest leaves of a trace."""
    assert plain.tokens is not None
    shorter = []
    for factor, cap in list(caps.items())[:-1]:
        assert factor is not None
        status, tokens, correct, read = plain.status, plain.tokens, plain.correct, plain.keys_read
        if cap < tokens:
            status, tokens, read = "capped", cap, trace.cost_at(cap).keys_read
            correct = _judged(_text(trace, cap), problem, scorers, ended=False).correct
        shorter.append(Shorter(factor, status, tokens, correct, read))
    return tuple(shorter)


def _first_right(plain: Sample, trace: Trace) -> int | None:
    """Tokens before the first trial answer of `agreement` that equals the text's own, right one."""
    if not (plain.correct and plain.answer):
        return None
    own = (asking := Agreement()).number(Trial(asking, [], plain.answer.encode()))
    every = [of for name, of in trace.signals.items() if name.startswith(f"{asking.name}-")]
    return min((int(place) for of in every for place, x in of if x == own), default=None)


def _with_waste(plain: Sample, trace: Trace) -> Sample:
    """With the tokens that a trace wasted, where it is known whether it was solved."""
    if plain.correct is None:
        return plain
    if plain.correct or plain.status != "capped":
        return replace(plain, wasted_loop=0, wasted_tail=0)
    ids = trace.new_ids[: plain.tokens]
    return replace(plain, wasted_loop=exact(ids), wasted_tail=tolerant(ids))


def _with_waste_left(sample: Sample, plain: Sample, verdict: Verdict) -> Sample:
    """With what the trace would have wasted and was decoded before the verdict."""
    assert plain.tokens is not None
    behind = plain.tokens - verdict.step
    wasted = (plain.wasted_loop, plain.wasted_tail)
    loop, tail = (None if n is None else max(0, n - behind) for n in wasted)
    return replace(sample, wasted_loop=loop, wasted_tail=tail)


def _with_questions(sample: Sample, spent: Mapping[str, float]) -> Sample:
    """With what a detector's questions cost; the trace alone has none of it."""
    tokens, keys, seconds = int(spent["tokens"]), sample.keys_read, sample.decode_sec
    return replace(
        sample,
        asked_tokens=tokens,
        asked_keys=spent["keys"],
        keys_read=None if keys is None else keys + spent["keys"],
        decode_sec=None if seconds is None else seconds + spent["seconds"],
    )


def _failed(sample: Sample, record: Record) -> Sample:
    return replace(sample, status=record.meta["status"], message=record.meta["message"])


def _untimed(sample: Sample) -> Sample:
    """Runs that act are decoded in batches of their own, whose seconds cannot be compared."""
    return replace(sample, prefill_sec=None, decode_sec=None, cache_byte_sec=None)


def _acted(
    sample: Sample, problem: PlannedProblem, record: Record, verdict: Verdict, scorers: Scorers
) -> Sample:
    """A run that went on after its verdict, as it was decoded."""
    if record.failed:
        return _failed(sample, record)
    trace = record.trace()
    whole = _untimed(measured(sample, problem, record, trace, trace.tokens, scorers=scorers))
    whole = _with_questions(whole, asked(trace.signals))
    stopped = trace.finish == verdict.detector
    return replace(whole, status="stopped" if stopped else whole.status, stopped_at=verdict.step)


def measured(
    sample: Sample,
    problem: PlannedProblem,
    record: Record,
    trace: Trace,
    length: int,
    verdict: Verdict | None = None,
    scorers: Scorers = NO_SCORERS,
) -> Sample:
    """A blank sample filled in from a trace's first `length` tokens, or by a verdict."""
    paid = length if verdict is None else verdict.step  # of the trace's tokens
    cut = length < trace.tokens
    if verdict is not None:
        sample = replace(sample, status="stopped", finish=verdict.detector, stopped_at=verdict.step)
    elif cut or trace.finish == "length":
        sample = replace(sample, status="capped", finish="length")
    else:
        sample = replace(sample, status="ok", finish=trace.finish)
    cost = trace.cost_at(paid)
    ended = not cut and verdict is None and trace.finish == "eos"
    judgement = _judged(_text(trace, length), problem, scorers, ended)
    room, decoded, ids = problem.room, len(trace.dropped) + paid, trace.new_ids[:length]
    return replace(
        _with_reads(sample, trace, paid),
        at_positions=room is not None and decoded + (sample.finish == "length") > room,
        sweep=record.meta["sweep"],
        batch_size=record.meta["batch_size"],
        workers=record.meta["workers"],
        record=record.id,
        tokens=length,
        output=hashlib.blake2b(array("q", ids).tobytes(), digest_size=8).hexdigest(),
        correct=judgement.correct,
        answer=judgement.answer,
        rule=judgement.rule,
        prefill_sec=trace.prefill_sec,
        decode_sec=cost.seconds,
        keys_read=cost.keys_read,
        cache_byte_sec=_byte_sec(trace, paid),
        curve=_curve(trace, length),
        repeated=repeats(ids),
        looping=loops(ids),
        reused_tokens=min(paid, trace.reused_tokens),
        dropped_tokens=decoded - length,
    )


def _text(trace: Trace, length: int) -> str:
    pieces = trace.pieces[:length] if length < trace.tokens else trace.text_pieces
    return b"".join(pieces).decode(errors="replace")


def with_text(samples: Iterable[Sample], store: Store) -> Iterator[Sample]:
    """The samples with their texts, read from their traces again: a study's fill gigabytes."""
    for sample in samples:
        record = None if sample.record is None else store.get(sample.record)
        if record is None or sample.tokens is None:
            yield sample
        else:
            yield replace(sample, text=_text(record.trace(), sample.tokens))


def _judged(text: str, problem: PlannedProblem, scorers: Scorers, ended: bool) -> Judgement:
    """Judged whenever it is read: a corrected answer or a better scorer decodes nothing again."""
    item = problem.item_id
    return judged(text, problem.gold, problem.scorer, scorers, item=item, ended=ended)


def _with_reads(sample: Sample, trace: Trace, length: int) -> Sample:
    """With stored and read keys, and the cache's peak, of the first `length` tokens."""
    if length == trace.tokens:
        return replace(
            sample,
            keys_kept_max=trace.keys_kept_max,
            keys_read_max=trace.keys_read_max,
            keys_read_mean=trace.keys_read_mean,
            dense_layer_keys_read_mean=trace.dense_layer_keys_read_mean,
            cache_bytes_peak=trace.cache_bytes_peak,
        )
    seen = len(trace.prompt_ids) + length - 1  # the last token is chosen, not yet read
    cost = trace.cost_at(length)
    cache_bytes = [check.cache_bytes for check in trace.checks if check.tokens < length]
    return replace(
        sample,
        # Nothing can hold or read more keys than there are tokens.
        keys_kept_max=min(trace.keys_kept_max, seen),
        keys_read_max=None if trace.keys_read_max is None else min(trace.keys_read_max, seen),
        keys_read_mean=_per_step(cost.read_sum, length),
        dense_layer_keys_read_mean=_per_step(cost.dense_read_sum, length),
        cache_bytes_peak=int(max([*cache_bytes, cost.cache_bytes])),
    )


def _per_step(total: float | None, length: int) -> float | None:
    """The mean over decode steps: the first token comes from the prompt, without one."""
    return None if total is None or length < 2 else total / (length - 1)


def _byte_sec(trace: Trace, length: int) -> float | None:
    """Bytes of the cache times seconds while decoding, the trapezoid between two checks."""
    points = [check for check in trace.checks if check.tokens < length] + [trace.cost_at(length)]
    points.insert(0, trace.cost_at(0))
    total = 0.0
    for before, after in pairwise(points):
        if before.seconds is None or after.seconds is None:
            return None
        mean = (before.cache_bytes + after.cache_bytes) / 2
        total += mean * (after.seconds - before.seconds)
    return total


def _curve(trace: Trace, length: int) -> tuple[Point, ...]:
    """The compression curve of the first `length` tokens, its last point at their end."""
    if length == trace.tokens:
        return trace.curve
    points = [point for point in trace.curve if (point[0] or 0) <= length]
    if not points or points[-1][0] != length:
        meter = Meter().feed(b"".join(trace.pieces[:length]))
        points.append((length, meter.fed, meter.size()))
    return tuple(points)


def continues_after_verdict(detector: Detector) -> bool:
    """Whether something is generated after its verdict."""
    return not detector.action.ends


def verdict_on(trace: Trace, detector: Detector, cap: int) -> Verdict | None:
    """The verdict on a plain trace, whatever follows it."""
    return _watched(trace, detector, cap).verdict


def _watched(trace: Trace, detector: Detector, cap: int) -> Watcher[Any]:
    """Its watcher, at its verdict or the end."""
    if continues_after_verdict(detector):
        detector = replace(detector, on_stop="stop")
    return replayed(trace, detector, max_tokens=cap)


class Firing(NamedTuple):
    """A plain run, and what a detector that acts says of it now."""

    run: Run
    record: Record
    cap: int
    detector: Detector
    verdict: Verdict

    @property
    def id(self) -> str:
        """What the run in which it acts is called."""
        return acted_id(self.run, self.detector, self.cap)


def acted_record(store: Store, fired: Firing) -> Record | None:
    """The run with this detector at work, if it was decoded upon the same verdict."""
    record = store.get(fired.id)
    return record if record is not None and _follows(record, fired) else None


def _follows(record: Record, fired: Firing) -> bool:
    """Whether a stored run is what the detector makes of this verdict, by the same methods."""
    _, plain, _, detector, verdict = fired
    if not record.made_by(plain.code):
        return False
    if not record.made_by(code(detector)) and (record.failed or detector.action.watched):
        return False
    return record.meta.get("verdict") == stored_verdict(verdict)


def stored_verdict(verdict: Verdict) -> list[int | None]:
    """What a run that acts upon a verdict follows from: tokens kept, step and anchor."""
    return [verdict.token, verdict.step, verdict.anchor]


def acted_id(run: Run, detector: Detector, cap: int) -> str:
    """The identity of a run with a detector that acts; tokens it drops count towards the cap."""
    return digest({"run": run.id, "detector": detector.identity(), "cap": cap})
