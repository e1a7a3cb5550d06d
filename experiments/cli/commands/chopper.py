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
from experiments.cli.progress import Bars, bar
from experiments.cli.settings import add_config_flags, config_from
from experiments.cli.stores import add_load_flag, open_store, to_load
from experiments.grid import data, models
from experiments.grid.config import Config, check
from experiments.grid.data.sets import expand
from experiments.grid.stored import import_paths
from experiments.reasoner import RECIPES
from experiments.report.exports import check_file
from experiments.store.study import Study
from experiments.sweep import sweep

EXAMPLES = """\
examples:
  lil chopper train                             the reasoner's, from problems it was trained on
  lil chopper train --from lil-out/mine         traces that are there already; every fifth problem
                                                is held out
  lil chopper train --embedder minilm           labels as in the paper (extra `chopper`)
  lil chopper train --model agentica-org/DeepScaleR-1.5B-Preview --dataset math500

--out holds the decoded traces, which are decoded once.
"""

_NOT_HERE = ("split", "detectors", "detector_params", "weights")  # `--weights` is its file

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
    group.add_argument("--from", dest="store", metavar="STORE", help="a sweep, instead of decoding")
    add_load_flag(group)
    group.add_argument(
        "--held-out-limit",
        type=int,
        default=6,
        metavar="N",
        help="problems of each level of the reasoner to measure on (6); of other data sets every "
        "fifth problem is held out",
    )
    add_config_flags(parser, without=_NOT_HERE, presets=("chopper", "paper"))
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
        "--out", default="lil-out/chopper", metavar="DIR", help="traces (lil-out/chopper)"
    )
    group.add_argument(
        "--weights",
        dest="classifier",
        metavar="FILE",
        help="the classifier (default: <out>/chopper.safetensors)",
    )


def command(args: argparse.Namespace, console: Console) -> Done:
    """Decode or read traces, label them, read hidden states, train, measure, write."""
    from experiments import chopper_training as chopper
    from lil.chopper import Labeller, SentenceModel, TextMatch, Training

    if args.embedder == "text":
        embedder: Any = TextMatch()
    else:
        embedder = SentenceModel() if args.embedder == "minilm" else SentenceModel(args.embedder)
        embedder.embed(["A model that is missing is refused here."])
    labeller = Labeller(embedder=embedder, **_parameters(args, _LABELS))
    training = Training(**_parameters(args, _RECIPE))
    out = Path(args.classifier or Path(args.out) / "chopper.safetensors")
    check_file("weights", str(out))
    if not args.block < 0:
        raise InvalidValue("block", args.block, "below 0: counted from the last block, -1")
    models.quiet_transformers()
    sweeps = [_stored(args)] if args.store else _decoded(args)
    config = sweeps[0].config
    source, loaded = _model(sweeps, config)
    parts = []
    for study in sweeps:
        with bar("labelling", len(study.plan)) as advance:
            parts.append(chopper.labelled(study, labeller, advance))
    chopper.require_chunks([trace for part in parts for trace in part], source.name)
    if len(parts) == 1:
        parts = list(chopper.held_out_by_problem(parts[0]))
    total = sum(trace.chunks[-1].end for part in parts for trace in part if trace.chunks)
    with bar("hidden states", total) as advance:
        train, held_out = (
            chopper.with_states(loaded, study, part, args.block, advance)
            for study, part in zip((sweeps[0], sweeps[-1]), parts, strict=True)
        )
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


def _stored(args: argparse.Namespace) -> Study:
    """The sweep that --from names, with this machine's settings."""
    own = ("batch_size", "device", "threads")  # of this machine; the rest is the sweep's
    for name in ("preset", *(field.name for field in dataclasses.fields(Config))):
        if getattr(args, name, None) and name not in own:
            allowed = "nothing: the sweep of --from has its own"
            raise InvalidValue(name, getattr(args, name), allowed)
    changed = {name: getattr(args, name) for name in own if getattr(args, name)}
    changed = check(changed, "the command line")
    study = open_store(Path(args.store), to_load(args))
    return dataclasses.replace(study, config=dataclasses.replace(study.config, **changed))


def _decoded(args: argparse.Namespace) -> list[Study]:
    """Sweeps for training and, where the problems have a split for it, for measuring."""
    from experiments.chopper_training import require_fifth

    if not 1 <= args.held_out_limit <= data.MOST_MADE:
        allowed = f"1 to {data.MOST_MADE:,} problems"
        raise InvalidValue("held-out-limit", args.held_out_limit, allowed)
    own = getattr(args, "models", None) in (None, models.REASONER)
    args.preset = args.preset or ("chopper" if own else "paper")
    fixed = {"detectors": "none", "split": "train", "null": "none"}
    preset, config = config_from(args, **fixed)
    configs = {"train": config}
    if set(expand(config.datasets)) <= set(RECIPES):
        more = {"split": "heldout", "limit": args.held_out_limit}
        configs["held-out"] = dataclasses.replace(config, **more)
    studies = []
    for name, part in configs.items():
        folder = Path(args.out) / name
        with Console(stderr=True).status("loading model and problems"):
            prepared = sweep.prepare(part, folder)
        if len(configs) == 1:
            items = prepared.experiment.plan.items
            require_fifth({dataset: len(ids) for (_, dataset), ids in items.items()})
        with Bars() as bars:
            sweep.run(prepared, folder, preset=preset, arguments=args.arguments, progress=bars)
        studies.append(Study.open(folder, load=import_paths(part)))
    return studies


def _model(
    sweeps: Sequence[Study], config: Config
) -> tuple[models.ModelSource, models.LoadedModel]:
    """The one model of all sweeps, with the weights they were made with."""
    names = {name for study in sweeps for name in study.config.models}
    if len(names) > 1:
        raise InvalidValue("model", ", ".join(sorted(names)), "one model: a chopper is one model's")
    models.use_threads(config.threads)
    source = models.find(config.models[0], config.revision, weights=config.weights)
    for study in sweeps:
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
