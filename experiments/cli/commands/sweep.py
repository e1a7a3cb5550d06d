"""`lil sweep`: the grid."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from attention.errors import InvalidValue
from experiments.cli.console import Console, notify, table
from experiments.cli.parser import Done, Parser
from experiments.cli.progress import Bars
from experiments.cli.reporting import Outputs, add_figure_flags, check_outputs, show
from experiments.cli.settings import add_config_flags, config_from
from experiments.grid import models
from experiments.grid.config import Config
from experiments.grid.data.sets import labels
from experiments.grid.experiment import Experiment
from experiments.grid.identity import digest
from experiments.grid.presets import load
from experiments.grid.stored import import_paths
from experiments.store.study import Study
from experiments.sweep import sweep
from experiments.sweep.estimate import estimate, total

EXAMPLES = """\
examples:
  lil sweep                                   the demo: the reasoner that ships, in minutes
  lil sweep --preset demo-small               the same in a minute
  lil sweep --backend full,quest --budget 48,96 --limit 16 --out lil-out/quest
  lil sweep --model ./my-model --dataset problems.jsonl --budget 256,512
      your model on your problems (columns question and answer, or problem and answer)
  lil sweep --model agentica-org/DeepScaleR-1.5B-Preview --dataset math500
      the paper's experiment, on a GPU
  lil sweep --penalty lz,repetition --set penalty_params.lz.alpha=0.2
  lil sweep --preset paper --dry-run          how many runs, tokens, bytes and hours that would be
  lil sweep --model ./my-model --dataset problems.jsonl --column question=q,answer=gold \\
      --prompt-template prompt.txt --sample 100

The same command again goes on where it was stopped and decodes nothing twice. A store remembers
all its sweeps, a file each in sweeps/: `lil report` shows the last with all that fit it.
"""


def add_arguments(parser: Parser, **keys: Any) -> None:
    """Flags of `lil sweep`; `keys`: those of the configuration, see `add_config_flags`."""
    add_config_flags(parser, **keys)
    group = parser.add_argument_group("output")
    out = (
        "folder of the store (default: lil-out/<preset>; with other models or data sets than the "
        "preset's lil-out/<preset>-<model>-<data set>)"
    )
    group.add_argument("--out", metavar="DIR", help=out)
    add_figure_flags(parser)
    for flag, text in (
        ("--retry-failed", "decode again what failed before"),
        ("--again", "decode anew what is stored of classes module:Class that were edited since"),
        ("--dry-run", "print how many runs, tokens, bytes and seconds it would be; write nothing"),
    ):
        group.add_argument(flag, action="store_true", help=text)


def _default_folder(preset: str, config: Config) -> Path:
    """Where a sweep goes without --out: other models or data sets have folders of their own."""
    names, own = [preset.removesuffix(".toml")], load(preset)
    if (config.models, config.datasets) != (own.models, own.datasets):
        names += [*config.models, *config.datasets]
    # Of paths their last parts, in characters that every file system takes.
    safe = (re.sub(r"[^A-Za-z0-9.+_-]+", "-", name.rstrip("/").split("/")[-1]) for name in names)
    name = "-".join(part.strip("-.") or "here" for part in safe)
    return Path("lil-out") / (name if len(name) <= 120 else f"{name[:110]}-{digest(name)[:6]}")


def command(args: argparse.Namespace, console: Console) -> Done:
    """Decode what the store lacks, then show the results."""
    return decode(args, console, *config_from(args))


def decode(
    args: argparse.Namespace, console: Console, preset: str, config: Config, compare: bool = False
) -> Done:
    """Decode what the store lacks of a configuration, then show its report or its comparison."""
    check_outputs(args)
    if args.out == "":
        raise InvalidValue("out", args.out, "a folder")
    out = Path(args.out) if args.out else _default_folder(preset, config)
    models.quiet_transformers()
    if args.dry_run:
        forecast = estimate(config, out)
        _print(forecast, console)
        return Done(forecast)
    sweep.begin(config, out)
    with Console(stderr=True).status("loading model and problems"):
        prepared = sweep.prepare(Experiment.from_config(config), out, again=args.again)
    notify(prepared.experiment.warnings)
    names = labels([cell.dataset for cell in prepared.experiment.plan.configurations])
    with Bars(names) as bars:
        try:
            outcome = sweep.run(
                prepared,
                out,
                preset=preset,
                arguments=args.arguments,
                progress=bars,
                retry_failed=args.retry_failed,
            )
        except KeyboardInterrupt:
            bars.note(f"what was decoded is in {out}; the same command goes on from there")
            raise
    counts = outcome.counts
    bars.note(
        f"{counts.decoded} runs decoded ({counts.decoded_tokens:,} tokens, "
        f"{counts.reused_tokens:,} reused), {counts.stored_before} were stored, "
        f"{counts.failed} failed; seed {config.seed}"
    )
    study = Study.open(out, outcome.sweep, import_paths(config))
    study = replace(study, scorers=prepared.experiment.scorers)
    shown = show(study, console, Outputs.of(args, out), compare)
    console.plain(f"store: {out}")
    usable = any(row.samples > row.errors + row.missing for row in shown.report.rows)
    return Done(shown.document, code=shown.code if usable else 1)


def _print(forecast: dict[str, Any], console: Console) -> None:
    """Print a dry run: a table for each model, memory, and sentences."""
    names = ("data set", "backend", "runs", "stored", "tokens", "at most", "time")
    for model in dict.fromkeys(row["model"] for row in forecast["cells"]):
        of_model = [row for row in forecast["cells"] if row["model"] == model]
        rows = _by_backend(of_model, forecast["labels"])
        console.print(table(model, names, rows, left=names[:2]), "")
    if memory := [row for row in forecast["memory"] if row["weight_bytes"] is not None]:
        sizes = ("weight_bytes", "kv_bytes_per_row", "kv_bytes_per_batch")
        cells = [
            (
                row["model"],
                row["backend"],
                _number(row["budget"]),
                *(decimal(row[x]) for x in sizes),
            )
            for row in memory
        ]
        batch = f"keys and values of a row and of {forecast['batch_size']}"
        columns = ("model", "backend", "budget", "weights", "row", "batch")
        title = f"memory in {forecast['dtype']}, {batch}"
        console.print(table(title, columns, cells, left=columns[:2]), "")
    lines = [
        f"{forecast['runs']:,} runs, {_number(forecast['stored'])} of them stored; about "
        f"{forecast['tokens_expected']:,} tokens, at most {forecast['tokens_at_most']:,}; "
        f"time: {_time(forecast['seconds'])}"
    ]
    if forecast["runs_of_unknown_length"]:
        lines.append(
            f"{forecast['runs_of_unknown_length']:,} runs are reckoned at --max-new-tokens: the "
            "store does not know how long full attention is on their problem"
        )
    for line in (*lines, *forecast["unknown"], *forecast["notices"]):
        console.plain(line)


def _by_backend(
    forecasts: Sequence[dict[str, Any]], names: Mapping[str, str]
) -> Iterator[list[str]]:
    """Lines of a model's table: budgets of a backend together."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for forecast in forecasts:
        added = "" if forecast["penalty"] == "none" else f" + {forecast['penalty']}"
        backend = forecast["backend"] + added
        groups.setdefault((names[forecast["dataset"]], backend), []).append(forecast)
    for (dataset, backend), group in groups.items():
        yield [
            dataset,
            backend,
            _number(sum(row["runs"] for row in group)),
            _number(total(row["stored"] for row in group)),
            _short(sum(row["tokens_expected"] for row in group)),
            _short(sum(row["tokens_at_most"] for row in group)),
            _time(total(row["seconds"] for row in group)),
        ]


def _short(count: int) -> str:
    return f"{count / 1e6:,.1f}M" if count >= 1e6 else f"{count:,}"


def _number(value: int | None) -> str:
    return "—" if value is None else f"{value:,}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "—"
    hours = seconds / 3600
    return f"{hours:,.1f} h" if hours >= 1 else f"{seconds / 60:,.1f} min"
