"""`lil sweep`: the grid."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from experiments.cli.parser import Done, Parser
from experiments.cli.progress import Bars, quiet_transformers
from experiments.cli.settings import add_config_flags, config_from
from experiments.cli.show import add_figure_flags, figure_folder, show
from experiments.grid.data_sets import expand, labels
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

The same command again goes on where it was stopped and decodes nothing twice.
"""


def add_arguments(parser: Parser) -> None:
    """Flags of `lil sweep`."""
    add_config_flags(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--out", metavar="DIR", help="folder of the store (default: lil-out/<preset>)"
    )
    add_figure_flags(parser)
    group.add_argument(
        "--retry-failed", action="store_true", help="decode again what failed before"
    )


def command(args: argparse.Namespace, console: Console) -> Done:
    """Decode what the store lacks, then show what was found."""
    preset, config = config_from(args)
    out = Path(args.out) if args.out else Path("lil-out") / Path(preset).stem
    expand(config.datasets)  # a wrong name is said before seconds of loading
    quiet_transformers()
    with Console(stderr=True).status("loading model and problems"):
        prepared = sweep.prepare(config, out)
    names = labels([cell.dataset for cell in prepared.plan.cells])
    with Bars(names) as bars:
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
    shown = show(Study.open(out), console, bars.console, figure_folder(args, out))
    console.print(f"store: {out}", highlight=False, markup=False, soft_wrap=True)
    usable = any(
        sample.status not in ("error", "out_of_memory", "missing") for sample in shown.samples
    )
    return Done(shown.document, code=shown.code if usable else 1)
