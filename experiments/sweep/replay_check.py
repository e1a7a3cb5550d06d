"""A check that live equals replayed: the same verdict at the same token, trace by trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import lil
from attention.errors import InvalidValue
from experiments.grid import models
from experiments.grid.data.sets import stream_name
from experiments.grid.identity import OWN_RUNTIME
from experiments.grid.plan import Run
from experiments.grid.stored import model_of
from experiments.store.study import Study
from lil import Detector, Trace, Verdict
from lil.detectors import watch_trace

#: (finish, tokens, evidence) of a generation.
Ending = tuple[str, int, Mapping[str, object] | None]

#: Another batch sums in another order: numbers made from hidden states differ by such a share.
ROUNDING = 1e-4


@dataclass
class Agreement:
    """How many traces were compared, how many verdicts there were, and where they differ."""

    traces: int = 0
    verdicts: int = 0
    differ: list[str] = field(default_factory=list)

    def compare(self, name: str, live: Ending, replayed: Ending, tolerance: float = 0.0) -> None:
        """Count one comparison; numbers of the evidence may differ by a share of `tolerance`."""
        self.traces += 1
        self.verdicts += live[2] is not None
        if live[:2] != replayed[:2] or not _alike(live[2], replayed[2], tolerance):
            self.differ.append(f"{name}: live {live}, replayed {replayed}")


def _alike(left: object, right: object, tolerance: float) -> bool:
    """Whether two pieces of evidence are the same; whole numbers and words must be equal."""
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=tolerance, abs_tol=0.0)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        shared = left.keys() == right.keys()
        return shared and all(_alike(left[key], right[key], tolerance) for key in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(_alike(a, b, tolerance) for a, b in pairs)
    return left == right


def feed(trace: Trace, detector: Detector, cap: int) -> Ending:
    """(finish, tokens, evidence) when a trace's tokens come one at a time, as in the decode loop.

    `eos` is looked at first, then the cap, then the detector, which sees a token only if neither
    ended the row.
    """
    watcher = watch_trace(trace, detector)
    for number, piece in enumerate(trace.pieces, start=1):
        if trace.finish == "eos" and number == trace.tokens:
            return "eos", number, None
        if number == cap:
            return "length", number, None
        verdict = watcher.update([piece])
        if verdict is not None:
            return verdict.detector, verdict.token, dict(verdict.evidence)
    return trace.finish, trace.tokens, None


def replayed(trace: Trace, detector: Detector, cap: int) -> Ending:
    """(finish, tokens, evidence) by replay of the whole trace at once."""
    verdict: Verdict | None = lil.replay(trace, detector, max_tokens=cap)
    if verdict is not None:
        return verdict.detector, verdict.token, dict(verdict.evidence)
    if trace.tokens > cap or (trace.tokens == cap and trace.finish == "length"):
        return "length", cap, None
    return trace.finish, trace.tokens, None


def check_fed(
    study: Study, detector: Detector, on_run: Callable[[], None] | None = None
) -> Agreement:
    """Every trace of a sweep: its tokens fed one by one against its replay."""
    agreement = Agreement()
    for run in study.runs():
        if (record := study.usable(run)) is not None:
            trace, cap = record.trace(), study.cap(run)
            live = feed(trace, detector, cap)
            agreement.compare(_name(run), live, replayed(trace, detector, cap))
        if on_run is not None:
            on_run()
    return agreement


def check_decoded(
    study: Study, detector: Detector, limit: int, on_run: Callable[[], None] | None = None
) -> Agreement:
    """Real decoding with the detector at work against the replay of the stored trace.

    Tokens are compared as well. At most `limit` runs, spread evenly over the plan.
    """
    config = study.config
    if config.runtime != OWN_RUNTIME:
        allowed = f"{OWN_RUNTIME}: here detectors are at work in `lil.decode`"
        raise InvalidValue("runtime", config.runtime, allowed)
    stored = [(run, record) for run in study.runs() if (record := study.usable(run))]
    if limit < len(stored):
        stored = [stored[i * len(stored) // limit] for i in range(limit)]
    agreement = Agreement()
    shelf: dict[str, models.LoadedModel] = {}
    for configuration in study.plan.configurations:
        runs = [(run, r.trace()) for run, r in stored if run.configuration == configuration]
        if not runs:
            continue
        loaded = model_of(config, configuration, shelf)
        requests = [
            lil.Request(
                trace.prompt_ids,
                study.cap(run),
                stream_name(configuration.dataset, run.item_id),
                run.sample_index,
            )
            for run, trace in runs
        ]
        for index, trace in lil.stream(
            loaded.model,
            loaded.tokenizer,
            requests,
            backend=study.backend(configuration),
            penalties=study.penalties(configuration),
            detectors=[detector],
            token_bytes=loaded.token_bytes,
            **config.decode_options(),
        ):
            run, whole = runs[index]
            evidence = None if trace.evidence is None else dict(trace.evidence)
            live = (trace.finish, trace.tokens, evidence)
            agreement.compare(_name(run), live, replayed(whole, detector, study.cap(run)), ROUNDING)
            if trace.new_ids != whole.new_ids[: trace.tokens]:
                agreement.differ.append(f"{_name(run)}: other tokens than the stored trace")
            if on_run is not None:
                on_run()
    return agreement


def _name(run: Run) -> str:
    return f"{run.configuration.name} {run.configuration.dataset} {run.item_id}"
