"""Proof that live equals replayed: the same verdict at the same token, trace by trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import lil
from attention.errors import InvalidValue
from experiments.grid import models
from experiments.grid.data.sets import stream_name
from experiments.grid.identity import OWN_RUNTIME
from experiments.grid.plan import Run
from experiments.store.store import Record
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


def _alike(one: object, other: object, tolerance: float) -> bool:
    """Whether two pieces of evidence are the same; whole numbers and words must be equal."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=0.0)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(
            _alike(value, other[key], tolerance) for key, value in one.items()
        )
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(
            _alike(a, b, tolerance) for a, b in zip(one, other, strict=True)
        )
    return one == other


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
    study: Study,
    detector: Detector,
    device: str,
    limit: int,
    on_run: Callable[[], None] | None = None,
) -> Agreement:
    """Real decoding with the detector at work against the replay of the stored trace.

    Tokens are compared as well. At most `limit` runs, spread evenly over the plan.

    Raises:
        InvalidValue: the model is not there, its weights are no longer those of the sweep, or
            another runtime decoded it.
    """
    chosen = [(run, record) for run in study.runs() if (record := study.usable(run))]
    if limit < len(chosen):
        chosen = [chosen[i * len(chosen) // limit] for i in range(limit)]
    agreement = Agreement()
    for model in dict.fromkeys(run.configuration.model for run, _ in chosen):
        of_model = [pair for pair in chosen if pair[0].configuration.model == model]
        _decode_model(study, detector, device, of_model, agreement, on_run)
    return agreement


def _decode_model(
    study: Study,
    detector: Detector,
    device: str,
    chosen: Sequence[tuple[Run, Record]],
    agreement: Agreement,
    on_run: Callable[[], None] | None,
) -> None:
    config, digest = study.config, chosen[0][0].configuration.model_digest
    if config.runtime != OWN_RUNTIME:
        allowed = f"{OWN_RUNTIME}: here detectors are at work in `lil.decode`"
        raise InvalidValue("runtime", config.runtime, allowed)
    source = models.find(chosen[0][0].configuration.model, config.revision, weights=config.weights)
    if source.digest != digest:
        raise InvalidValue("model", source.name, "the weights the store was made with")
    loaded = models.load(source, config.dtype, device, config.device_map)
    for configuration in study.plan.configurations:
        mine = [
            (run, record.trace()) for run, record in chosen if run.configuration == configuration
        ]
        if not mine:
            continue
        for index, trace in lil.stream(
            loaded.model,
            loaded.tokenizer,
            [
                lil.Request(
                    stored.prompt_ids,
                    study.cap(run),
                    stream_name(configuration.dataset, run.item_id),
                    run.sample_index,
                )
                for run, stored in mine
            ],
            backend=study.backend(configuration),
            penalties=study.penalties(configuration),
            detectors=[detector],
            token_bytes=loaded.token_bytes,
            **config.decode_options(),
        ):
            run, stored = mine[index]
            evidence = None if trace.evidence is None else dict(trace.evidence)
            live = (trace.finish, trace.tokens, evidence)
            again = replayed(stored, detector, study.cap(run))
            agreement.compare(_name(run), live, again, ROUNDING)
            if trace.new_ids != stored.new_ids[: trace.tokens]:
                agreement.differ.append(f"{_name(run)}: other tokens than the stored trace")
            if on_run is not None:
                on_run()


def _name(run: Run) -> str:
    return f"{run.configuration.name} {run.configuration.dataset} {run.item_id}"
