"""Training a Word Salad Chopper from stored traces: label, read hidden states, fit, measure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

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

T = TypeVar("T")

_BLANK = re.compile(rb"\n\n+")

#: A line of the table of what a classifier does, see `measured`.
Measured = dict[str, Any]


@dataclass(frozen=True)
class ChunkedTrace:
    """A trace in chunks, where its word salad begins, and its hidden states at the chunks' ends.

    Args:
        run: which decode it is.
        trace: as stored, up to the cap.
        chunks: of the text.
        salad_from: the first chunk that is word salad, None where none is.
        states: (chunks, hidden size); empty until they are read.
    """

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
    """Every trace of a sweep up to its cap, labelled; those the store lacks are left out.

    So are those of nulls, which would count full attention twice.

    Args:
        study: where the traces are, and their caps.
        labeller: says where word salad begins.
        on_run: called after each run, for a progress bar.
    """
    found = []
    for run in study.runs():
        if run.configuration.role != "null" and (record := study.usable(run)) is not None:
            trace = _cut(record.trace(), study.cap(run))
            parts = chunks(trace.text_pieces)
            texts = [_text(trace, chunk) for chunk in parts]
            first = labeller.salad_from(texts)
            found.append(ChunkedTrace(run, trace, tuple(parts), first, torch.zeros(0, 0)))
        if on_run is not None:
            on_run()
    return found


def _cut(trace: Trace, cap: int) -> Trace:
    if trace.tokens <= cap:
        return trace
    ids, pieces = trace.new_ids[:cap], trace.pieces[:cap]
    return replace(trace, new_ids=ids, pieces=pieces, finish="length", evidence=None)


def _text(trace: Trace, chunk: Chunk) -> str:
    return b"".join(trace.pieces[chunk.start : chunk.end]).decode(errors="replace")


def with_states(
    loaded: LoadedModel,
    study: Study,
    traces: Sequence[ChunkedTrace],
    block: int,
    on_tokens: Callable[[int], None] | None = None,
) -> list[ChunkedTrace]:
    """The same traces with the hidden states they were decoded with, in another order.

    Args:
        loaded: the model that made them.
        study: of the sweep: backends and batch size.
        traces: from `labelled`.
        block: whose output is read, see `lil.hidden_states`.
        on_tokens: called with how many tokens have been read since the last call.

    Raises:
        InvalidValue: no such block.
    """
    found = []
    # Where a penalty chose the tokens, the states are still the backend's.
    groups: list[tuple[Backend, list[ChunkedTrace]]] = []
    for one in traces:
        backend = study.backend(one.run.configuration)
        group = next((group for other, group in groups if other == backend), None)
        if group is None:
            groups.append((backend, group := []))
        group.append(one)
    for backend, group in groups:
        states = chunk_states(
            loaded.model,
            backend,
            [one.trace for one in group],
            block,
            study.config.batch_size,
            on_tokens,
        )
        found += [replace(one, states=read) for one, read in zip(group, states, strict=True)]
    return found


def require_fifth(problems: Mapping[str, int]) -> None:
    """Refuse data sets of which none has a fifth problem, before anything is decoded.

    Args:
        problems: how many each data set has.

    Raises:
        InvalidValue: fewer than five problems in every data set.
    """
    if max(problems.values(), default=0) < 5:
        allowed = "five or more of one data set: every fifth is held out"
        raise InvalidValue("problems", sum(problems.values()), allowed)


def require_chunks(traces: Sequence[ChunkedTrace], model: str) -> None:
    """Refuse traces in whose texts less than one blank line in ten stands in one token.

    Args:
        traces: from `labelled`.
        model: that made them.

    Raises:
        InvalidValue: a vocabulary that writes a blank line as two ends of lines: hardly any chunk
            ever ends.
    """
    blank = sum(len(_BLANK.findall(b"".join(one.trace.pieces))) for one in traces)
    ends = sum(len(one.chunks) for one in traces)
    if 10 * ends < blank:
        allowed = (
            "a model that writes a blank line as one token, at which a chunk ends: of "
            f"{blank} blank lines in {len(traces)} texts {ends} are one"
        )
        raise InvalidValue("model", model, allowed)


def every_fifth(problems: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """The problems that are held out of one sweep: every fifth of each data set.

    Args:
        problems: data set and item, in order, as often as there are runs.

    Raises:
        InvalidValue: fewer than five problems in every data set.
    """
    items: dict[str, dict[str, None]] = {}
    for dataset, item in problems:
        items.setdefault(dataset, {})[item] = None
    require_fifth({name: len(found) for name, found in items.items()})
    return {(name, item) for name, found in items.items() for item in list(found)[4::5]}


def held_out_by_problem(
    traces: Sequence[ChunkedTrace],
) -> tuple[list[ChunkedTrace], list[ChunkedTrace]]:
    """Training and evaluation from one sweep: every fifth problem of a data set is held out.

    Raises:
        InvalidValue: fewer than five problems in every data set.
    """
    held = every_fifth((one.run.configuration.dataset, one.run.item_id) for one in traces)
    split: tuple[list[ChunkedTrace], list[ChunkedTrace]] = ([], [])
    for one in traces:
        split[(one.run.configuration.dataset, one.run.item_id) in held].append(one)
    return split


def refuse_shared_problems(train: Sequence[ChunkedTrace], held_out: Sequence[ChunkedTrace]) -> None:
    """Make sure that nothing is measured on a problem it was trained on.

    Raises:
        InvalidValue: a problem of both.
    """
    known = {(one.run.configuration.dataset, one.run.item_id) for one in train}
    for one in held_out:
        if (one.run.configuration.dataset, one.run.item_id) in known:
            allowed = "other problems than those of the training"
            raise InvalidValue("held-out", one.run.item_id, allowed)


def fit(
    traces: Sequence[ChunkedTrace],
    training: Training,
    *,
    model: str,
    block: int,
    labeller: Labeller,
    about: dict[str, Any],
) -> Classifier:
    """A classifier from traces with hidden states.

    Args:
        traces: from `with_states`.
        training: the recipe.
        model: the model's name.
        block: whose output the states are.
        labeller: what labelled them.
        about: further facts of the training, JSON-able.

    Raises:
        InvalidValue: no chunk of one class.
    """
    fitted = training.fit(
        torch.cat([one.states for one in traces]),
        torch.tensor([label for one in traces for label in one.labels]),
        torch.tensor([tokens for one in traces for tokens in one.lengths]),
    )
    problems: dict[str, set[str]] = {}
    for one in traces:
        problems.setdefault(one.run.configuration.dataset, set()).add(one.run.item_id)
    counts = {
        "problems": {name: len(items) for name, items in sorted(problems.items())},
        "backends": _apart(dict(one.run.configuration.backend) for one in traces),
        "traces": len(traces),
        "salad_traces": sum(one.salad_from is not None for one in traces),
        "chunks": sum(len(one.chunks) for one in traces),
        "salad_chunks": sum(sum(one.labels) for one in traces),
    }
    facts = {**about, **counts, **fitted.facts}
    return Classifier(
        fitted.weight, fitted.bias, block, model, labeller=labeller.params(), training=facts
    )


def _apart(tables: Iterable[T]) -> list[T]:
    """Each once, in order."""
    found: list[T] = []
    for table in tables:
        if table not in found:
            found.append(table)
    return found


# ---------------------------------------------------------------- measuring


def measured(classifier: Classifier, traces: Sequence[ChunkedTrace], short: int) -> list[Measured]:
    """A row for each data set and backend, all budgets together, and one for everything.

    Accuracy and AUROC are over chunks of more than `short` tokens, as in training. `chopped_salad`
    counts traces with word salad that the default rule chops, `chopped_sound` the others.

    Args:
        classifier: what is measured.
        traces: with hidden states.
        short: chunks of at most so many tokens are left out of accuracy and AUROC.
    """
    return tabled(
        [
            (one, torch.sigmoid(classifier.logits(one.states)).tolist() if one.chunks else [])
            for one in traces
        ],
        short,
    )


def tabled(known: Sequence[tuple[ChunkedTrace, list[float]]], short: int) -> list[Measured]:
    """The same from the probabilities of each trace's chunks, as signals keep them."""
    groups: dict[tuple[str, str], list[tuple[ChunkedTrace, list[float]]]] = {}
    for one, numbers in known:
        cell = one.run.configuration
        groups.setdefault((cell.dataset, cell.backend["name"]), []).append((one, numbers))
    rows = [_row(*names, group, short) for names, group in sorted(groups.items())]
    return [*rows, _row("all", "all", known, short)]


def _row(
    dataset: str, backend: str, group: Sequence[tuple[ChunkedTrace, list[float]]], short: int
) -> Measured:
    pairs = [
        (p, label)
        for one, numbers in group
        for p, label, tokens in zip(numbers, one.labels, one.lengths, strict=True)
        if tokens > short
    ]
    salad = [one.salad_from is not None for one, _ in group]
    chopped = [_chops(one, numbers) for one, numbers in group]
    return {
        "dataset": dataset,
        "backend": backend,
        "traces": len(group),
        "salad_traces": sum(salad),
        **evaluate([p for p, _ in pairs], [label for _, label in pairs]),
        "chopped_salad": sum(a and b for a, b in zip(salad, chopped, strict=True)),
        "chopped_sound": sum(b and not a for a, b in zip(salad, chopped, strict=True)),
    }


def _chops(one: ChunkedTrace, numbers: Sequence[float]) -> bool:
    streaks = Streaks()
    return any(streaks.push(n, p) for n, p in zip(one.lengths, numbers, strict=True))
