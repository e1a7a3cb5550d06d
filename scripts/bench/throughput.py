"""Tokens a second of the decode loop, beside transformers (three ways) and vLLM.

    python scripts/bench/throughput.py                    # every backend, minutes
    python scripts/bench/throughput.py --backends full,h2o --engines cpp --repeats 1
    python scripts/bench/throughput.py --vllm ~/envs/vllm/bin/python

scripts/vllm_env installs vLLM for CPUs into an environment of its own.

tok/s: generated tokens a second of the median run, prompts' reading included. one, vLLM: times
faster than transformers one at a time and than vLLM. full: than our full attention in one process;
forced rows against full attention on the same forced tokens in as many processes. same: outputs
that equal our full attention's token for token. forced: full attention's tokens are fed one by one,
so that every backend does equal work; other sparse rows choose tokens of their own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from peers.compare import BACKENDS, peers
from programs import Column, conditions, measuring, names, one_message, parser, printed, table

from experiments.grid.models import use_threads

#: Of a row.
COLUMNS = (
    Column("", "peer", words=True),
    Column("tokens", "tokens", ","),
    Column("s", "seconds", ".2f"),
    Column("tok/s", "tokens_per_s", ",.0f"),
    Column("one", "times_one", ".1f"),
    Column("vLLM", "times_vllm", ".1f"),
    Column("full", "times_full", ".1f"),
    Column("same", "same", words=True),
)


def same(row: dict[str, Any]) -> str | None:
    """How many outputs of how many equal ours."""
    return None if row["same"] is None else f"{row['same']}/{row['prompts']}"


def notes(found: dict[str, Any]) -> list[str]:
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


@one_message
def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    flags = parser(__doc__)
    flags.add_argument("--backends", type=names, default=BACKENDS, help="full is always run")
    flags.add_argument("--budget", type=int, default=128, help="tokens a query may read (128)")
    flags.add_argument("--engines", type=names, default=[], help="all that work here")
    flags.add_argument("--level", default="medium", help="easy, medium or hard (medium)")
    sizes = {
        "problems": (32, "prompts, all in one batch"),
        "max-new-tokens": (1024, "most generated tokens of a prompt"),
        "one": (8, "prompts that transformers is given one at a time; 0 leaves that out"),
        "workers": (2, "processes that share prompts and threads; 0 leaves that out"),
        "repeats": (3, "runs of each; the median counts"),
    }
    for name, (default, line) in sizes.items():
        flags.add_argument(f"--{name}", type=int, default=default, help=f"{line} ({default})")
    flags.add_argument(
        "--continuous",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="transformers' own batching of requests, which is slow here",
    )
    flags.add_argument("--threads", type=int, help="of torch; all cores, or OMP_NUM_THREADS")
    flags.add_argument("--vllm", help="Python of an environment with vLLM; .venv-vllm, if there")
    args = flags.parse_args(argv)
    use_threads(args.threads)
    options = {n: value for n, value in vars(args).items() if n not in ("json", "threads")}
    with measuring() as progress:
        found = peers(**options, progress=progress)
    title = f"{found['problems']} problems of {found['level']}: medians of {found['repeats']}"
    apart = ("bound", "shared_bound", "reached", "aims")
    rows = table(title, COLUMNS, [{**row, "same": same(row)} for row in found["rows"]])
    return printed(found, args.json, rows, *notes(found), conditions(found, *apart))


if __name__ == "__main__":
    sys.exit(main())
