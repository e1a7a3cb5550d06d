"""Proof that live equals replayed: the same verdict at the same token, trace by trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import lil
from attention.errors import InvalidValue
from experiments.grid import data, models
from experiments.grid.config import Config
from experiments.grid.plan import Methods, Plan, Run, build_backends, build_penalties
from experiments.store import replay
from experiments.store.store import Store
from lil import Detector, Trace, Verdict
from lil.replaying import watch

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
    watcher = watch(trace, detector)
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
    store: Store,
    plan: Plan,
    config: Config,
    detector: Detector,
    on_run: Callable[[], None] | None = None,
) -> Agreement:
    """Every trace of a sweep: its tokens fed one by one against its replay."""
    agreement = Agreement()
    for run, cap in replay.capped_runs(store, plan, config):
        record = store.get(run.id)
        if record is not None and record.serves(cap) and not record.failed:
            trace = Trace.from_dict(record.trace())
            live = feed(trace, detector, cap)
            agreement.compare(_name(run), live, replayed(trace, detector, cap))
        if on_run is not None:
            on_run()
    return agreement


def check_decoded(
    store: Store,
    plan: Plan,
    config: Config,
    detector: Detector,
    device: str,
    limit: int,
    on_run: Callable[[], None] | None = None,
) -> Agreement:
    """Real decoding with the detector at work against the replay of the stored trace.

    Tokens are compared as well. At most `limit` runs, spread evenly over the plan.

    Raises:
        InvalidValue: the model is not there, or its weights are no longer those of the sweep.
    """
    chosen = _spread(
        [
            (run, cap)
            for run, cap in replay.capped_runs(store, plan, config)
            if (record := store.get(run.id)) and record.serves(cap) and not record.failed
        ],
        limit,
    )
    agreement = Agreement()
    methods = Methods(build_backends(config), build_penalties(config))
    for model in dict.fromkeys(run.cell.model for run, _ in chosen):
        source = models.find(model, config.revision)
        if source.digest != next(r.cell.model_digest for r, _ in chosen if r.cell.model == model):
            raise InvalidValue("model", model, "the weights the store was made with")
        loaded = models.load(source, config.dtype, device)
        for cell in plan.cells:
            mine = [(run, cap) for run, cap in chosen if run.cell == cell and cell.model == model]
            if not mine:
                continue
            stored = [Trace.from_dict(_trace(store, run)) for run, _ in mine]
            for index, trace in lil.stream(
                loaded.model,
                loaded.tokenizer,
                [list(trace.prompt_ids) for trace in stored],
                backend=methods.backend(cell),
                penalties=methods.penalties(cell),
                detectors=[detector],
                max_new_tokens=[cap for _, cap in mine],
                batch_size=config.batch_size,
                temperature=config.temperature,
                top_k=config.top_k,
                top_p=config.top_p,
                seed=config.seed,
                item_ids=[data.stream_name(cell.dataset, run.item_id) for run, _ in mine],
                sample_indices=[run.sample_index for run, _ in mine],
                check_every=config.check_every,
            ):
                run, cap = mine[index]
                before = stored[index]
                evidence = None if trace.evidence is None else dict(trace.evidence)
                live = (trace.finish, trace.tokens, evidence)
                agreement.compare(_name(run), live, replayed(before, detector, cap), ROUNDING)
                if trace.new_ids != before.new_ids[: trace.tokens]:
                    agreement.differ.append(f"{_name(run)}: other tokens than the stored trace")
                if on_run is not None:
                    on_run()
    return agreement


def _trace(store: Store, run: Run) -> dict[str, object]:
    record = store.get(run.id)
    assert record is not None  # chosen because the store has it
    return record.trace()


def _spread(found: Sequence[tuple[Run, int]], limit: int) -> list[tuple[Run, int]]:
    if limit >= len(found):
        return list(found)
    return [found[i * len(found) // limit] for i in range(limit)]


def _name(run: Run) -> str:
    return f"{run.cell.told} {run.cell.dataset} {run.item_id}"
