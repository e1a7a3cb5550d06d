"""Train the linear layer of a Word Salad Chopper from stored traces of one model.

    python scripts/training/train_chopper.py --from STORE [--weights FILE]

Traces are cut into chunks and labelled, hidden states are read again, every fifth problem is a
holdout. STORE is the folder of a sweep, such as one of `lil sweep --preset chopper --out STORE`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from attention import Backend
from attention.errors import InvalidValue
from experiments.cli.console import Console
from experiments.cli.output import careful
from experiments.cli.parser import Parser, add_json
from experiments.cli.progress import bar
from experiments.cli.stores import add_load_flag, open_store, to_load
from experiments.grid import models
from experiments.grid.plan import Run
from experiments.report.exports import check_file
from experiments.store.study import Study
from lil import Trace
from lil.chopper import (
    Chunk,
    Classifier,
    Labeller,
    SentenceModel,
    Streaks,
    TextMatch,
    Training,
    chunk_states,
    chunks,
    evaluate,
)

EXAMPLES = """\
examples:
  train_chopper.py --from lil-out/chopper
  train_chopper.py --from lil-out/mine --epochs 500 --weights mine.safetensors
  train_chopper.py --from lil-out/mine --embedder minilm    labels as in the paper
"""

#: Flag -> the parameter it sets and what that is; kind and default are the class's own.
_LABELS = {
    "--similarity": ("similarity", "least cosine of a repeated chunk"),
    "--window": ("window", "chunks before it that a chunk is compared with"),
    "--run": ("run", "repeated chunks in a row that begin word salad"),
}
_RECIPE = {
    "--lr": ("lr", "learning rate"),
    "--epochs": ("epochs", "passes over the chunks"),
    "--train-batch": ("batch_size", "chunks a step"),
    "--train-seed": ("seed", "of draw, start and order"),
    "--short": ("short", "chunks of at most so many tokens are left out"),
}


_BLANK = re.compile(rb"\n\n+")

#: A line of the table of what a classifier does, see `measured`.
Measured = dict[str, Any]


@dataclasses.dataclass(frozen=True)
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
    return dataclasses.replace(trace, new_ids=ids, pieces=pieces, finish="length", evidence=None)


def with_states(
    loaded: models.LoadedModel,
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
        size = study.config.rows
        states = chunk_states(loaded.model, backend, decoded, block, size, on_tokens)
        read += [dataclasses.replace(t, states=x) for t, x in zip(group, states, strict=True)]
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


def arguments() -> argparse.Namespace:
    parser = Parser(description=__doc__.split("\n")[0], epilog=EXAMPLES)
    parser.set_defaults(json=False)
    add_json(parser)
    group = parser.add_argument_group("traces")
    group.add_argument(
        "--from", dest="store", metavar="STORE", required=True, help="folder of a sweep"
    )
    add_load_flag(group)
    group = parser.add_argument_group("labels")
    group.add_argument(
        "--embedder",
        default="text",
        metavar="text|minilm|MODEL",
        help="what makes chunks similar: their text, or a sentence-transformers model (text)",
    )
    _add(group, Labeller, _LABELS)
    group = parser.add_argument_group("classifier")
    group.add_argument(
        "--block", type=int, default=-2, metavar="N", help="whose output is read (-2)"
    )
    _add(group, Training, _RECIPE)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--weights", metavar="FILE", help="the classifier (default: STORE/chopper.safetensors)"
    )
    return parser.parse_args()


def _add(group: Any, parameters: type, flags: Mapping[str, tuple[str, str]]) -> None:
    """The flags of some of a dataclass's parameters."""
    defaults = {field.name: field.default for field in dataclasses.fields(parameters)}
    for flag, (name, line) in flags.items():
        default = defaults[name]
        text = f"{line} ({default})"
        group.add_argument(flag, type=type(default), default=default, metavar="N", help=text)


def _parameters(args: argparse.Namespace, flags: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """The values of those flags."""
    return {name: getattr(args, flag[2:].replace("-", "_")) for flag, (name, _) in flags.items()}


def train_chopper(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Read traces, label them, read hidden states, train, measure, write."""
    if args.embedder == "text":
        embedder: Any = TextMatch()
    else:
        embedder = SentenceModel() if args.embedder == "minilm" else SentenceModel(args.embedder)
        embedder.embed(["A model that is missing is refused here."])
    labeller = Labeller(embedder=embedder, **_parameters(args, _LABELS))
    training = Training(**_parameters(args, _RECIPE))
    out = Path(args.weights or Path(args.store) / "chopper.safetensors")
    check_file("weights", str(out))
    if not args.block < 0:
        raise InvalidValue("block", args.block, "below 0: counted from the last block, -1")
    models.quiet_transformers()
    study = open_store(Path(args.store), to_load(args.load))
    source, loaded = _model(study)
    with bar("labelling", len(study.plan)) as advance:
        traces = labelled(study, labeller, advance)
    require_chunks(traces, source.name)
    parts = held_out_by_problem(traces)
    total = sum(trace.chunks[-1].end for trace in traces if trace.chunks)
    with bar("hidden states", total) as advance:
        train, held_out = (with_states(loaded, study, part, args.block, advance) for part in parts)
    config = study.config
    about = {"model_digest": source.digest, "dtype": config.dtype, "split": config.split}
    fitted = fit(
        train, training, model=source.name, block=args.block, labeller=labeller, about=about
    )
    classifier = fitted.save(out)
    rows = {
        "training": measured(classifier, train, training.short),
        "held_out": measured(classifier, held_out, training.short),
    }
    for title, table_rows in rows.items():
        _print(console, title.replace("_", "-") + " problems", table_rows)
    console.print(
        f"Chunks of more than {training.short} tokens. Chopped: traces that the default rule "
        "chops, with word salad and without.",
        highlight=False,
    )
    console.print(f"weights: {out} ({classifier.digest})", highlight=False, markup=False)
    document = {"weights": str(out), "digest": classifier.digest, "block": args.block}
    facts = {"labeller": classifier.labeller, "training": classifier.training}
    return document | facts | {"rows": rows}


def _model(study: Study) -> tuple[models.ModelSource, models.LoadedModel]:
    """The model of a sweep, with the weights it was made with."""
    config = study.config
    if len(config.models) > 1:
        allowed = "one model: a chopper is one model's"
        raise InvalidValue("model", ", ".join(config.models), allowed)
    models.use_threads(config.threads)
    source = models.find(config.models[0], config.revision, weights=config.weights)
    if any(part.model_digest != source.digest for part in study.plan.configurations):
        raise InvalidValue("model", source.name, f"the weights {study.folder} was made with")
    device = models.resolve_device(config.device)
    return source, models.load(source, config.dtype, device)


def _print(console: Console, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = ("data set", "backend", "traces", "with salad", "chunks", "of salad")
    heads = (*columns, "accuracy", "AUROC", "chopped salad", "chopped sound")
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in heads:
        table.add_column(head, justify="left" if head in columns[:2] else "right")
    for row in rows:
        counts = (f"{row[name]:,}" for name in ("traces", "salad_traces", "chunks", "salad"))
        shares = ("—" if (x := row[name]) is None else f"{x:.3f}" for name in ("accuracy", "auroc"))
        chopped = (str(row[name]) for name in ("chopped_salad", "chopped_sound"))
        table.add_row(escape(row["dataset"]), escape(row["backend"]), *counts, *shares, *chopped)
    console.print(table)


def main() -> int:
    args = arguments()
    with careful():
        try:
            document = train_chopper(args, Console(stderr=args.json))
        except InvalidValue as error:
            print(f"train_chopper: error: {error}", file=sys.stderr)
            return 2
        if args.json:
            print(json.dumps(document, allow_nan=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
