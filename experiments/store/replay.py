"""From stored traces to samples: cut at the cap, and at the verdict of every detector.

A detector changes no token before it fires, and a longer trace holds every shorter one, so one
decode serves all caps and all detectors. Costs of a cut trace are those the run had at that token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from experiments.grid.config import Config
from experiments.grid.identity import Cell
from experiments.grid.plan import Plan, Run, backend_of
from experiments.grid.scoring import correct
from experiments.store.acting import acted_record, acts, possible
from experiments.store.acting import verdict as verdict_of
from experiments.store.repetition import repeats
from experiments.store.sample import Sample, Status
from experiments.store.store import Record, Store
from lil import Detector, Meter, Trace, Verdict
from lil.detectors import follows


@dataclass(frozen=True)
class Results:
    """Samples of all runs of a plan that the store can serve, and how many it cannot."""

    samples: list[Sample]
    missing: int


def labels(detectors: Sequence[Detector]) -> list[str]:
    """A name for each detector; parameters are spelled out where name and action are not unique."""
    actions = [follows(detector).name for detector in detectors]
    out = [""] * len(detectors)
    for action in set(actions):
        mine = [at for at, other in enumerate(actions) if other == action]
        told = _labels([(detectors[at].name, detectors[at].params()) for at in mine])
        for at, label in zip(mine, told, strict=True):
            out[at] = label
    return out


def penalty_labels(plan: Plan) -> list[str]:
    """A name for the penalty of each cell of the plan, as `labels`; "none" where it has none."""
    tables = [dict(table) for cell in plan.cells for table in cell.penalties]
    apart = [table for at, table in enumerate(tables) if table not in tables[:at]]
    names = _labels([(table["name"], table) for table in apart])
    return [
        "+".join(names[apart.index(dict(table))] for table in cell.penalties) or "none"
        for cell in plan.cells
    ]


def _labels(things: Sequence[tuple[str, Mapping[str, object]]]) -> list[str]:
    names = [name for name, _ in things]
    out = []
    for name, params in things:
        others = [other for same, other in things if same == name]
        shown = {
            key: value
            for key, value in params.items()
            if any(other[key] != value for other in others)
        }
        inside = ", ".join(f"{key}={short(value)}" for key, value in shown.items())
        out.append(f"{name}({inside})" if names.count(name) > 1 else name)
    return out


def short(value: object) -> str:
    """A parameter's value as labels and tables show it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def samples(
    store: Store,
    plan: Plan,
    config: Config,
    detectors: Sequence[Detector],
    on_run: Callable[[], None] | None = None,
) -> Results:
    """Every run of the plan as decoded, and as each detector would have left it.

    Args:
        store: where the traces are.
        plan: which of them count.
        config: its caps.
        detectors: replayed over each trace.
        on_run: called after each run, for a progress bar.
    """
    found: list[Sample] = []
    missing = 0
    named = list(zip(labels(detectors), detectors, strict=True))
    for cell, penalty in zip(plan.cells, penalty_labels(plan), strict=True):
        for run in plan.runs(cell):
            cap = cap_of(store, plan, config, run)
            record = store.get(run.id)
            if record is None or not record.serves(cap):
                missing += 1
            else:
                for sample in _samples_of(store, run, penalty, record, cap, named):
                    if sample is None:
                        missing += 1
                    else:
                        found.append(sample)
            if on_run is not None:
                on_run()
    return Results(found, missing)


def capped_runs(store: Store, plan: Plan, config: Config) -> Iterator[tuple[Run, int]]:
    """Every run with the most tokens it may have: its own cap for full attention, else after it."""
    for cell in plan.cells:
        for run in plan.runs(cell):
            yield run, cap_of(store, plan, config, run)


def cap_of(store: Store, plan: Plan, config: Config, run: Run) -> int:
    """The cap of one run; a sparse one's follows from full attention's trace in the store."""
    if run.cell.is_full:
        return config.max_new_tokens
    return config.sparse_cap(full_tokens(store, plan, config, run))


def full_record(store: Store, plan: Plan, run: Run) -> Record | None:
    """The full-attention run of the same problem, if the store has it."""
    full = Run(plan.full_cell(run.cell), run.item_id, run.prompt, run.sample_index)
    return store.get(full.id)


def full_tokens(store: Store, plan: Plan, config: Config, run: Run) -> int | None:
    """Tokens of full attention on the same problem under its own cap; None if it failed."""
    record = full_record(store, plan, run)
    if record is None or record.failed:
        return None
    return min(int(record.meta["tokens"]), config.max_new_tokens)


def _samples_of(
    store: Store,
    run: Run,
    penalty: str,
    record: Record,
    cap: int,
    named: Sequence[tuple[str, Detector]],
) -> Iterator[Sample | None]:
    """The run's samples; None for one that acts and has not been decoded."""
    named = [(label, one) for label, one in named if _possible(one, run.cell)]
    if record.failed:
        yield _failed(record, _identity(run, "none", "none", penalty))
        for label, detector in named:
            yield _failed(record, _identity(run, label, follows(detector).name, penalty))
        return
    trace = Trace.from_dict(record.trace())
    whole = min(cap, trace.tokens)
    plain = _sample(_identity(run, "none", "none", penalty), record, trace, whole)
    yield plain
    for label, detector in named:
        identity = _identity(run, label, follows(detector).name, penalty)
        verdict = verdict_of(detector, trace, cap)
        if not acts(detector):
            kept = whole if verdict is None else verdict.token
            yield _sample(identity, record, trace, kept, verdict)
        elif verdict is None:
            yield replace(plain, **identity, **_UNTIMED)  # type: ignore[arg-type]
        else:
            acted = acted_record(store, run, detector, cap)
            yield None if acted is None else _acted(identity, acted, verdict)


#: Runs that act are decoded in batches of their own, whose seconds cannot be compared.
_UNTIMED = {"prefill_sec": None, "decode_sec": None, "cache_byte_sec": None}


def _possible(detector: Detector, cell: Cell) -> bool:
    """Whether the cell's backend can do what follows the verdict."""
    return not follows(detector).dense or possible(detector, backend_of(cell))


def _acted(identity: Mapping[str, object], record: Record, verdict: Verdict) -> Sample:
    """A run that went on after its verdict, as it was decoded."""
    if record.failed:
        return _failed(record, identity)
    trace = Trace.from_dict(record.trace())
    whole = _sample(identity, record, trace, trace.tokens)
    stopped = trace.finish == verdict.detector
    return replace(
        whole,
        status="stopped" if stopped else whole.status,
        stopped_at=verdict.step,
        **_UNTIMED,  # type: ignore[arg-type]
    )


def _identity(run: Run, label: str, action: str, penalty: str) -> dict[str, object]:
    cell: Cell = run.cell
    params = {k: v for k, v in cell.backend.items() if k not in ("name", "budget")}
    return {
        "model": cell.model,
        "dataset": cell.dataset,
        "item_id": run.item_id,
        "sample_index": run.sample_index,
        "backend": cell.backend["name"],
        "backend_params": tuple(sorted(params.items())),
        "budget": cell.budget,
        "penalty": penalty,
        "detector": label,
        "action": action,
    }


def _failed(record: Record, identity: Mapping[str, object]) -> Sample:
    nothing = dict.fromkeys(
        (
            "finish",
            "text",
            "tokens",
            "correct",
            "stopped_at",
            "prefill_sec",
            "decode_sec",
            "keys_read",
            "keys_kept_max",
            "keys_read_mean",
            "keys_read_max",
            "dense_layer_keys_read_mean",
            "cache_bytes_peak",
            "cache_byte_sec",
            "repeated",
        )
    )
    status, message = record.meta["status"], record.meta["message"]
    return Sample(
        **identity,  # type: ignore[arg-type]
        **nothing,  # type: ignore[arg-type]
        status=status,
        message=message,
        curve=(),
    )


def _sample(
    identity: Mapping[str, object],
    record: Record,
    trace: Trace,
    kept: int,
    verdict: Verdict | None = None,
) -> Sample:
    """A trace's first `kept` tokens as a sample, after a verdict if there was one."""
    paid = kept if verdict is None else verdict.step  # of the trace's tokens
    cut = kept < trace.tokens
    status: Status
    if verdict is not None:
        status, finish = "stopped", verdict.detector
    elif cut or trace.finish == "length":
        status, finish = "capped", "length"
    else:
        status, finish = "ok", trace.finish
    pieces = trace.pieces[:kept] if cut else trace.text_pieces
    text = b"".join(pieces).decode(errors="replace")
    solved = correct(text, record.meta["gold"], record.meta["scorer"]) if cut else None
    cost = trace.cost_at(paid)
    return Sample(
        **identity,  # type: ignore[arg-type]
        status=status,
        finish=finish,
        message=None,
        text=text,
        tokens=kept,
        correct=solved if cut else record.meta["correct"],
        stopped_at=None if verdict is None else verdict.step,
        prefill_sec=trace.prefill_sec,
        decode_sec=cost["seconds"],
        keys_read=cost["keys_read"],
        **_reads(trace, paid),  # type: ignore[arg-type]
        cache_byte_sec=_byte_sec(trace, paid),
        curve=_curve(trace, kept),
        repeated=repeats(trace.new_ids[:kept]),
        reused_tokens=min(paid, trace.reused_tokens),
        dropped_tokens=len(trace.dropped) + paid - kept,
    )


def _reads(trace: Trace, kept: int) -> dict[str, float | None]:
    """Keys kept and read, and the cache's peak, of the first `kept` tokens."""
    if kept == trace.tokens:
        return {
            "keys_kept_max": trace.keys_kept_max,
            "keys_read_max": trace.keys_read_max,
            "keys_read_mean": trace.keys_read_mean,
            "dense_layer_keys_read_mean": trace.dense_layer_keys_read_mean,
            "cache_bytes_peak": trace.cache_bytes_peak,
        }
    seen = len(trace.prompt_ids) + kept - 1  # the last token is chosen, not yet read
    held = [check["cache_bytes"] for check in trace.checks if check["tokens"] < kept]
    cost = trace.cost_at(kept)
    held.append(cost["cache_bytes"])
    return {
        # Nothing can hold or read more keys than there are tokens.
        "keys_kept_max": min(trace.keys_kept_max, seen),
        "keys_read_max": None if trace.keys_read_max is None else min(trace.keys_read_max, seen),
        "keys_read_mean": _per_step(cost["read_sum"], kept),
        "dense_layer_keys_read_mean": _per_step(cost["dense_read_sum"], kept),
        "cache_bytes_peak": int(max(held)),
    }


def _per_step(total: float | None, kept: int) -> float | None:
    """The mean over decode steps: the first token comes from the prompt, without one."""
    return None if total is None or kept < 2 else total / (kept - 1)


def _byte_sec(trace: Trace, kept: int) -> float | None:
    """Bytes held times seconds held while decoding, the trapezoid between two checks."""
    points = [check for check in trace.checks if check["tokens"] < kept] + [trace.cost_at(kept)]
    points.insert(0, trace.cost_at(0))
    total = 0.0
    for before, after in pairwise(points):
        if before["seconds"] is None or after["seconds"] is None:
            return None
        held = (before["cache_bytes"] + after["cache_bytes"]) / 2
        total += held * (after["seconds"] - before["seconds"])
    return total


def _curve(trace: Trace, kept: int) -> tuple[tuple[int | None, int, int], ...]:
    """The compression curve of the first `kept` tokens, its last point at their end."""
    if kept == trace.tokens:
        return trace.curve
    points = [point for point in trace.curve if (point[0] or 0) <= kept]
    if not points or points[-1][0] != kept:
        meter = Meter().feed(b"".join(trace.pieces[:kept]))
        points.append((kept, meter.fed, meter.size()))
    return tuple(points)
