"""`lil sweep`: the grid."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from attention.errors import InvalidValue
from experiments.cli.console import Console
from experiments.cli.open_store import (
    add_figure_flags,
    check_outputs,
    figure_folder,
    page_file,
    say,
    show,
)
from experiments.cli.parser import Done, Parser
from experiments.cli.progress import Bars
from experiments.cli.settings import add_config_flags, config_from
from experiments.grid import models
from experiments.grid.config import Config
from experiments.grid.data.sets import expand, labels
from experiments.grid.identity import digest
from experiments.grid.presets import load, preset_names
from experiments.grid.stored import import_paths
from experiments.store.study import Study
from experiments.sweep import sweep
from experiments.sweep.dry_run import ConfigurationForecast, MemoryForecast, dry_run, total

EXAMPLES = """\
examples:
  lil sweep
      the demo: the reasoner that ships with the project, on this machine, in minutes
  lil sweep --preset demo-small
      the same in a minute
  lil sweep --backend full,quest --budget 48,96 --limit 16 --out lil-out/quest
      part of the grid, more budgets
  lil sweep --model ./my-model --dataset problems.jsonl --budget 256,512
      your model on your problems (columns question and answer, or problem and answer)
  lil sweep --model agentica-org/DeepScaleR-1.5B-Preview --dataset math500
      the paper's experiment, on a GPU
  lil sweep --penalty lz,repetition --set penalty_params.lz.alpha=0.2
      every backend and budget without a penalty and with each; Guardian on and off in all of them
  lil sweep --preset paper --dry-run
      how many runs, tokens, bytes and, where the store knows it, hours that would be
  lil sweep --model ./my-model --dataset problems.jsonl --column question=q,answer=gold \\
      --prompt-template prompt.txt --sample 100
      other columns, your words, a hundred problems at random
  lil sweep --set backend_params.quest.page=16 --set detector_params.guardian.f=250

The same command again goes on where it was stopped and decodes nothing twice. A store remembers
all its sweeps: `lil report` shows the last with all that fit it, `lil report --sweeps` lists them.
"""


def add_arguments(parser: Parser) -> None:
    """Flags of `lil sweep`."""
    add_config_flags(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--out",
        metavar="DIR",
        help="folder of the store (default: lil-out/<preset>; with other models or data sets than "
        "the preset's lil-out/<preset>-<model>-<data set>; a preset's file in another folder has "
        "digits of its path behind its name)",
    )
    add_figure_flags(parser)
    group.add_argument(
        "--retry-failed", action="store_true", help="decode again what failed before"
    )
    group.add_argument(
        "--again",
        action="store_true",
        help="decode anew what is stored of classes given by module:Class that were edited since",
    )
    group.add_argument(
        "--dry-run",
        action="store_true",
        help="say how many runs, tokens, bytes and seconds it would be; load and write nothing",
    )


def default_folder(preset: str, config: Config) -> Path:
    """Where a sweep goes that does not say; other models or data sets have folders of their own."""
    name = Path(preset).stem if preset.endswith(".toml") else _safe(preset)
    if preset not in preset_names():
        path = Path(preset).absolute()
        # In the folder the command is run in, a file's name is its own; unless a preset has it.
        if path.parent != Path.cwd() or name in preset_names():
            name = f"{_safe(name)}-{digest(str(path))[:6]}"
    own = load(preset)
    if (config.models, config.datasets) != (own.models, own.datasets):
        name = "-".join([name, _safe("+".join(config.models)), _safe("+".join(config.datasets))])
    return Path("lil-out") / name


def _safe(name: str) -> str:
    """A name in characters that every file system takes, the last parts of paths alone.

    Where that is long, its beginning and digits of the whole.
    """
    safe = re.sub(r"[^A-Za-z0-9.+_-]+", "-", "+".join(map(_last, name.split("+")))).strip("-.")
    return safe if len(safe) <= 60 else f"{safe[:50]}-{digest(name)[:6]}"


def _last(part: str) -> str:
    """A path's last part, if there is such a path."""
    try:
        return Path(part).resolve().name if Path(part).exists() else part
    except (OSError, ValueError):  # a name that no file can have
        return part


def command(args: argparse.Namespace, console: Console) -> Done:
    """Decode what the store lacks, then show what was found."""
    check_outputs(args)
    preset, config = config_from(args)
    if args.out == "":
        raise InvalidValue("out", args.out, "a folder")
    out = Path(args.out) if args.out else default_folder(preset, config)
    expand(config.datasets)  # a wrong name is said before seconds of loading
    models.quiet_transformers()
    if args.dry_run:
        found = dry_run(config, out)
        _foresee(found, console)
        return Done(found)
    with Console(stderr=True).status("loading model and problems"):
        prepared = sweep.prepare(config, out, again=args.again)
    say(prepared.warnings, Console(stderr=True))
    names = labels([cell.dataset for cell in prepared.plan.configurations])
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
    study = replace(study, scorers=prepared.scorers)
    shown = show(study, console, bars.console, figure_folder(args, out), page_file(args, out))
    console.print(f"store: {out}", highlight=False, markup=False, soft_wrap=True)
    usable = any(row.samples > row.errors + row.missing for row in shown.found.rows)
    return Done(shown.document, code=shown.code if usable else 1)


def _foresee(found: dict[str, Any], console: Console) -> None:
    """What a dry run found out: a table a model, budgets together, memory, and sentences."""
    for model in dict.fromkeys(one["model"] for one in found["cells"]):
        table = Table(title=escape(model), title_justify="left", box=None, pad_edge=False)
        for name in ("data set", "backend"):
            table.add_column(name)
        for name in ("runs", "stored", "tokens", "at most", "time"):
            table.add_column(name, justify="right", no_wrap=True)
        of_model = [one for one in found["cells"] if one["model"] == model]
        for row in _by_backend(of_model, found["labels"]):
            table.add_row(*map(escape, row))
        console.print(table)
        console.print()
    if sized := [one for one in found["memory"] if one["weight_bytes"] is not None]:
        console.print(_memory(found, sized))
        console.print()
    lines = [
        f"{found['runs']:,} runs, {_number(found['stored'])} of them stored; about "
        f"{found['tokens_expected']:,} tokens, at most {found['tokens_at_most']:,}; "
        f"time: {_time(found['seconds'])}"
    ]
    if found["runs_of_unknown_length"]:
        lines.append(
            f"{found['runs_of_unknown_length']:,} runs are reckoned at --max-new-tokens: how long "
            "full attention is on their problem is not stored"
        )
    for line in (*lines, *found["unknown"], *found["notices"]):
        console.print(line, highlight=False, markup=False)


def _memory(found: dict[str, Any], sized: Sequence[MemoryForecast]) -> Table:
    """Weights, and keys and values, where they are known."""
    title = f"memory in {found['dtype']}, keys and values of a row and of {found['batch_size']}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("model", "backend"):
        table.add_column(name)
    for name in ("budget", "weights", "row", "batch"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in sized:
        sizes = (one["weight_bytes"], one["kv_bytes_per_row"], one["kv_bytes_per_batch"])
        named = (escape(one["model"]), escape(one["backend"]), _number(one["budget"]))
        table.add_row(*named, *map(_bytes, sizes))
    return table


def _by_backend(
    cells: Sequence[ConfigurationForecast], names: Mapping[str, str]
) -> Iterator[list[str]]:
    """Lines of a model's table: budgets of a backend together."""
    groups: dict[tuple[str, str], list[ConfigurationForecast]] = {}
    for one in cells:
        added = "" if one["penalty"] == "none" else f" + {one['penalty']}"
        groups.setdefault((names[one["dataset"]], one["backend"] + added), []).append(one)
    for (dataset, backend), some in groups.items():
        yield [
            dataset,
            backend,
            _number(sum(one["runs"] for one in some)),
            _number(total(one["stored"] for one in some)),
            _short(sum(one["tokens_expected"] for one in some)),
            _short(sum(one["tokens_at_most"] for one in some)),
            _time(total(one["seconds"] for one in some)),
        ]


def _short(count: int) -> str:
    return f"{count / 1e6:,.1f}M" if count >= 1e6 else f"{count:,}"


def _number(value: int | None) -> str:
    return "—" if value is None else f"{value:,}"


def _bytes(value: int | None) -> str:
    if value is None:
        return "—"
    size, units = float(value), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:,.1f} {units[0]}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "—"
    hours = seconds / 3600
    return f"{hours:,.1f} h" if hours >= 1 else f"{seconds / 60:,.1f} min"
