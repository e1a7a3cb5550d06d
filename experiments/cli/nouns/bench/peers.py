"""`lil bench peers`: tokens a second beside other ways to generate."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from experiments.cli.console import Console
from experiments.cli.nouns.bench.parts import Flag, Part, conditions, times
from experiments.cli.parser import Done, comma_list

LEGEND = """\
tok/s: generated tokens a second of the median run, prompts' reading included. one, vLLM: times \
faster than transformers one at a time and than vLLM. full: than our full attention in one \
process; forced rows against full attention on the same forced tokens in as many processes. \
same: outputs that equal our full attention's token for token. forced: full attention's tokens \
are fed one by one, so that every backend does equal work; other sparse rows choose tokens of \
their own."""


def _measure(args: argparse.Namespace, console: Console) -> Done:
    from experiments.bench.peers import peers
    from experiments.grid.models import use_threads

    use_threads(args.threads)
    with Console(stderr=True).status("measuring") as status:
        found = peers(
            args.backends,
            args.budget,
            args.engines,
            args.level,
            args.problems,
            args.max_new_tokens,
            args.one,
            args.workers,
            args.repeats,
            args.vllm,
            progress=status.update,
        )
    title = (
        f"{found['problems']} problems of {found['level']} to their end, float32, greedy: "
        f"medians of {found['repeats']}"
    )
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", justify="left")
    for name in ("tokens", "s", "tok/s", "one", "vLLM", "full", "same"):
        table.add_column(name, justify="right")
    for row in found["rows"]:
        table.add_row(row["peer"], *_cells(row))
    console.print(table)
    console.print(LEGEND)
    for line in _notes(found):
        console.print(line)
    apart = ("rows", "bound", "shared_bound", "reached", "aims")
    conditions(console, "conditions", {k: v for k, v in found.items() if k not in apart})
    return Done(found)


def _cells(row: dict[str, Any]) -> list[str]:
    if row["seconds"] is None:
        return ["not run"]
    same = "" if row["same"] is None else f"{row['same']}/{row['prompts']}"
    ratios = (times(row[f"times_{than}"]) for than in ("one", "vllm", "full"))
    return [
        f"{row['tokens']:,}",
        f"{row['seconds']:.2f}",
        f"{row['tokens_per_s']:,.0f}",
        *ratios,
        same,
    ]


def _notes(found: dict[str, Any]) -> list[str]:
    """What the table has no room for: reasons, where outputs part, the bound, what is aimed at."""
    lines = []
    for row in found["rows"]:
        if row["reason"] is not None:
            lines.append(f"{row['peer']}: {row['reason']}")
        if row["kind"] == "one":
            lines.append(f"{row['peer']}: a sample of {row['prompts']} prompts, scaled by tokens")
        if row["differing"]:
            parts = (
                f"prompt {one['prompt']} from token {one['token']}" for one in row["differing"]
            )
            lines.append(f"{row['peer']} differs from ours: {', '.join(parts)}")
    reached = found["reached"]
    for which, least in (("one_process", found["bound"]), ("processes", found["shared_bound"])):
        if least is not None:
            lines += _against(reached[which], least, found["aims"], which)
    slower = reached["sparse_slower_than_full"]
    lines.append(f"slower than full attention on forced tokens: {', '.join(slower) or 'none'}")
    return lines


def _against(
    full: dict[str, Any], least: dict[str, Any], aims: dict[str, float], which: str
) -> Iterator[str]:
    """The bound of full attention, and what its best run comes to."""
    whose = "in one process" if which == "one_process" else "of the slowest process"
    yield (
        f"bound of full attention {whose}: {least['seconds']:.2f} s = prompts without attention "
        f"{least['prompts_s']:.2f} + {least['steps']:,} steps of the model without attention "
        f"{least['model_s']:.2f} + {least['read_bytes'] / 1e9:.1f} GB of keys and values "
        f"{least['read_s']:.2f}"
    )
    if full["best"] is None:
        return
    said = [f"{full['of_bound']:.0%} of the bound (aim {aims['of_bound']:.0%})"]
    for name, than in (("times_vllm", "vLLM"), ("times_one", "transformers one at a time")):
        told = "not measured" if full[name] is None else f"{full[name]:.1f}"
        said.append(f"times {than} {told} (aim {aims[name]:.0f})")
    yield f"{full['best']}: {', '.join(said)}"


PEERS = Part(
    "tokens a second of the decode loop, beside transformers and vLLM",
    """\
examples:
  lil bench peers                    every backend, minutes
  lil bench peers --backends full,h2o --engines cpp --repeats 1
  lil bench peers --vllm ~/envs/vllm/bin/python

scripts/vllm_env installs vLLM for CPUs into an environment of its own.
""",
    _measure,
    (
        Flag(
            "backends",
            ["full", "h2o", "sink", "quest", "infllm", "tova", "snapkv", "rkv", "raas"],
            "names; full is always run",
            comma_list,
        ),
        Flag("budget", 128, "tokens a decode query may read"),
        Flag("engines", [], "what decode queries read with; none: all that work here", comma_list),
        Flag("level", "medium", "easy, medium or hard", str),
        Flag("problems", 32, "prompts, all in one batch"),
        Flag("max-new-tokens", 1024, "most generated tokens of a prompt"),
        Flag("one", 8, "prompts that transformers is given one at a time; 0 leaves that out"),
        Flag("workers", 2, "processes that share prompts and threads; 0 leaves that out"),
        Flag("repeats", 3, "runs of each; the median counts"),
        Flag("threads", None, "of torch; none: all cores, or OMP_NUM_THREADS"),
        Flag("vllm", None, "Python of an environment with vLLM; none: .venv-vllm, if there", str),
    ),
)
