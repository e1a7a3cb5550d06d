"""`lil sweep`: the grid."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from rich.console import Console

from experiments.cli.parser import Done, Parser
from experiments.cli.progress import Bars, quiet_transformers
from experiments.cli.settings import add_config_flags, config_from
from experiments.cli.show import add_figure_flags, figure_folder, page_file, show
from experiments.grid.config import Config, load, preset_names
from experiments.grid.data import expand
from experiments.grid.identity import digest
from experiments.store.study import Study
from experiments.sweep import sweep

EXAMPLES = """\
examples:
  lil sweep
      the demo: the reasoner that ships with the project, on this machine, in minutes
  lil sweep --preset demo-small
      the same in a minute
  lil sweep --backends full,quest --budgets 48,96 --limit 16 --out lil-out/quest
      part of the grid, more budgets
  lil sweep --model ./my-model --dataset problems.jsonl --budgets 256,512
      your model on your problems (columns question and answer, or problem and answer)
  lil sweep --model agentica-org/DeepScaleR-1.5B-Preview --dataset math500
      the paper's experiment, on a GPU
  lil sweep --penalty lz,repetition --set penalty_params.lz.alpha=0.2
      every backend and budget without a penalty and with each; Guardian on and off in all of them
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
    parts = [Path(part).resolve().name if Path(part).exists() else part for part in name.split("+")]
    safe = re.sub(r"[^A-Za-z0-9.+_-]+", "-", "+".join(parts)).strip("-.")
    return safe if len(safe) <= 60 else f"{safe[:50]}-{digest(name)[:6]}"


def command(args: argparse.Namespace, console: Console) -> Done:
    """Decode what the store lacks, then show what was found."""
    preset, config = config_from(args)
    out = Path(args.out) if args.out else default_folder(preset, config)
    expand(config.datasets)  # a wrong name is said before seconds of loading
    quiet_transformers()
    with Console(stderr=True).status("loading model and problems"):
        prepared = sweep.prepare(config, out)
    with Bars() as bars:
        outcome = sweep.run(
            prepared,
            out,
            preset=preset,
            arguments=args.arguments,
            progress=bars,
            retry_failed=args.retry_failed,
        )
    counts = outcome.counts
    bars.note(
        f"{counts.decoded} runs decoded ({counts.decoded_tokens:,} tokens, "
        f"{counts.reused_tokens:,} reused), {counts.stored_before} were stored, "
        f"{counts.failed} failed; seed {config.seed}"
    )
    study = Study.open(out, outcome.sweep)
    shown = show(study, console, bars.console, figure_folder(args, out), page_file(args, out))
    console.print(f"store: {out}", highlight=False, markup=False, soft_wrap=True)
    usable = any(
        sample.status not in ("error", "out_of_memory", "missing") for sample in shown.samples
    )
    return Done(shown.document, code=shown.code if usable else 1)
