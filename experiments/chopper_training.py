"""Training a Word Salad Chopper from stored traces: label, read hidden states, fit, measure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attention import Backend
from attention.errors import InvalidValue
from experiments.grid.models import LoadedModel
from experiments.grid.plan import Run
from experiments.store.study import Study
from lil import Trace
from lil.chopper.chunks import Chunk, Streaks, chunks
from lil.chopper.classifier import Classifier
from lil.chopper.features import chunk_states
from lil.chopper.labels import Labeller
from lil.chopper.training import Training, evaluate

_BLANK = re.compile(rb"\n\n+")

#: A line of the table of what a classifier does, see `measured`.
Measured = dict[str, Any]


@dataclass(frozen=True)
class ChunkedTrace:
    """A trace up to its cap in chunks, with the first chunk that is word salad, if one is."""

    run: Run
    trace: Trace
    chunks: tuple[Chunk, ...]
    salad_from: int | None
    states: Tensor

    @property
    def labels(self) -> list[int]:
        """Of each chunk, 1 for word salad."""
        first = len(self.chunks) if self.salad_from is None else self.salad_from
        return [int(i >= first) for i in range(len(self.chunks))]

    @property
    def lengths(self) -> list[int]:
        """Of each chunk, in tokens."""
        return [chunk.tokens for chunk in self.chunks]


def labelled(
    study: Study,
    labeller: Labeller,
    on_run: Callable[[], None] | None = None,
) -> list[ChunkedTrace]:
    """Every stored trace of a sweep up to its cap, labelled, but those of nulls, which would count
    full attention twice; `on_run` is called after each run."""
    traces = []
    for run in study.runs():
        if run.configuration.role != "null" and (record := study.usable(run)) is not None:
            trace = _cut(record.trace(), study.cap(run))
            parts = chunks(trace.text_pieces)
            texts = [
                b"".join(trace.pieces[chunk.start : chunk.end]).decode(errors="replace")
                for chunk in parts
            ]
            first = labeller.salad_from(texts)
            traces.append(ChunkedTrace(run, trace, tuple(parts), first, torch.zeros(0, 0)))
        if on_run is not None:
            on_run()
    return traces


def _cut(trace: Trace, cap: int) -> Trace:
    if trace.tokens <= cap:
        return trace
    ids, pieces = trace.new_ids[:cap], trace.pieces[:cap]
    return replace(trace, new_ids=ids, pieces=pieces, finish="length", evidence=None)


def with_states(
    loaded: LoadedModel,
    study: Study,
    traces: Sequence[ChunkedTrace],
    block: int,
    on_tokens: Callable[[int], None] | None = None,
) -> list[ChunkedTrace]:
    """The same traces, in another order, with the hidden states they were decoded with."""
    # Where a penalty chose the tokens, the states are still the backend's.
    groups: dict[Backend, list[ChunkedTrace]] = {}
    for trace in traces:
        groups.setdefault(study.backend(trace.run.configuration), []).append(trace)
    read = []
    for backend, group in groups.items():
        decoded = [trace.trace for trace in group]
        size = study.config.batch_size
        states = chunk_states(loaded.model, backend, decoded, block, size, on_tokens)
        read += [replace(t, states=x) for t, x in zip(group, states, strict=True)]
    return read


def require_chunks(traces: Sequence[ChunkedTrace], model: str) -> None:
    """Refuse traces in whose texts less than one blank line in ten is one token."""
    blank = sum(len(_BLANK.findall(b"".join(trace.trace.pieces))) for trace in traces)
    ends = sum(len(trace.chunks) for trace in traces)
    if 10 * ends < blank:
        allowed = (
            "a model that writes a blank line as one token, at which a chunk ends: of "
            f"{blank} blank lines in {len(traces)} texts {ends} are one"
        )
        raise InvalidValue("model", model, allowed)


def held_out_by_problem(
    traces: Sequence[ChunkedTrace],
) -> tuple[list[ChunkedTrace], list[ChunkedTrace]]:
    """Training and evaluation from one sweep: every fifth problem of a data set is held out."""
    items: dict[str, dict[str, None]] = {}
    for trace in traces:
        items.setdefault(trace.run.configuration.dataset, {})[trace.run.item_id] = None
    if max(map(len, items.values()), default=0) < 5:
        allowed = "five or more of one data set: every fifth is held out"
        raise InvalidValue("problems", sum(map(len, items.values())), allowed)
    held_out = {(name, item) for name, ids in items.items() for item in list(ids)[4::5]}
    return (
        [trace for trace in traces if _problem(trace) not in held_out],
        [trace for trace in traces if _problem(trace) in held_out],
    )


def _problem(trace: ChunkedTrace) -> tuple[str, str]:
    return trace.run.configuration.dataset, trace.run.item_id


def fit(
    traces: Sequence[ChunkedTrace],
    training: Training,
    *,
    model: str,
    block: int,
    labeller: Labeller,
    about: dict[str, Any],
) -> Classifier:
    """A classifier from traces with hidden states; `about` are further facts, JSON-able."""
    fitted = training.fit(
        torch.cat([trace.states for trace in traces]),
        torch.tensor([label for trace in traces for label in trace.labels]),
        torch.tensor([tokens for trace in traces for tokens in trace.lengths]),
    )
    problems: dict[str, set[str]] = {}
    backends: list[dict[str, Any]] = []
    for trace in traces:
        problems.setdefault(trace.run.configuration.dataset, set()).add(trace.run.item_id)
        backend = dict(trace.run.configuration.backend)
        if backend not in backends:
            backends.append(backend)
    counts = {
        "problems": {name: len(items) for name, items in sorted(problems.items())},
        "backends": backends,
        "traces": len(traces),
        "salad_traces": sum(trace.salad_from is not None for trace in traces),
        "chunks": sum(len(trace.chunks) for trace in traces),
        "salad_chunks": sum(sum(trace.labels) for trace in traces),
    }
    facts = {**about, **counts, **fitted.facts}
    return Classifier(
        fitted.weight, fitted.bias, block, model, labeller=labeller.params(), training=facts
    )


def measured(classifier: Classifier, traces: Sequence[ChunkedTrace], short: int) -> list[Measured]:
    """A row for each data set and backend, all budgets together, and one for everything.

    Accuracy and AUROC are over chunks of more than `short` tokens, as in training. `chopped_salad`
    counts traces with word salad that the default rule chops, `chopped_sound` the others.
    """
    scored = [
        (trace, torch.sigmoid(classifier.logits(trace.states)).tolist() if trace.chunks else [])
        for trace in traces
    ]
    groups: dict[tuple[str, str], list[tuple[ChunkedTrace, list[float]]]] = {}
    for trace, numbers in scored:
        names = (trace.run.configuration.dataset, trace.run.configuration.backend["name"])
        groups.setdefault(names, []).append((trace, numbers))
    rows = [_row(*names, group, short) for names, group in sorted(groups.items())]
    return [*rows, _row("all", "all", scored, short)]


def _row(
    dataset: str, backend: str, group: Sequence[tuple[ChunkedTrace, list[float]]], short: int
) -> Measured:
    pairs = [
        (p, label)
        for trace, numbers in group
        for p, label, tokens in zip(numbers, trace.labels, trace.lengths, strict=True)
        if tokens > short
    ]
    salad = [trace.salad_from is not None for trace, _ in group]
    chopped = []
    for trace, numbers in group:
        streaks = Streaks()
        chopped.append(any(map(streaks.push, trace.lengths, numbers)))
    return {
        "dataset": dataset,
        "backend": backend,
        "traces": len(group),
        "salad_traces": sum(salad),
        **evaluate([p for p, _ in pairs], [label for _, label in pairs]),
        "chopped_salad": sum(a and b for a, b in zip(salad, chopped, strict=True)),
        "chopped_sound": sum(b and not a for a, b in zip(salad, chopped, strict=True)),
    }
