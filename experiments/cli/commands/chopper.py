"""`lil chopper train`: a classifier that tells word salad from hidden states."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from attention.errors import InvalidValue
from experiments.cli.console import Console
from experiments.cli.parser import Done, Parser
from experiments.cli.progress import bar
from experiments.cli.stores import add_load_flag, open_store, to_load
from experiments.grid import models
from experiments.report.exports import check_file
from experiments.store.study import Study

EXAMPLES = """\
examples:
  lil sweep --preset chopper --out lil-out/chopper     problems that the reasoner was trained on
  lil chopper train --from lil-out/chopper             every fifth problem is a holdout
  lil chopper train --from lil-out/mine --epochs 500 --weights mine.safetensors
  lil chopper train --from lil-out/mine --embedder minilm    labels as in the paper
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


def add_arguments(parser: Parser) -> None:
    """Flags of `lil chopper`."""
    from lil.chopper import Labeller, Training

    parser.add_argument("what", choices=("train",), help="train: from traces to weights")
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


def command(args: argparse.Namespace, console: Console) -> Done:
    """Read traces, label them, read hidden states, train, measure, write."""
    from experiments import chopper_training as chopper
    from lil.chopper import Labeller, SentenceModel, TextMatch, Training

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
        traces = chopper.labelled(study, labeller, advance)
    chopper.require_chunks(traces, source.name)
    parts = chopper.held_out_by_problem(traces)
    total = sum(trace.chunks[-1].end for trace in traces if trace.chunks)
    with bar("hidden states", total) as advance:
        train, held_out = (
            chopper.with_states(loaded, study, part, args.block, advance) for part in parts
        )
    config = study.config
    about = {"model_digest": source.digest, "dtype": config.dtype, "split": config.split}
    fitted = chopper.fit(
        train, training, model=source.name, block=args.block, labeller=labeller, about=about
    )
    classifier = fitted.save(out)
    rows = {
        "training": chopper.measured(classifier, train, training.short),
        "held_out": chopper.measured(classifier, held_out, training.short),
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
    return Done(document | facts | {"rows": rows})


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
    return source, models.load(source, config.dtype, device, config.device_map)


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
