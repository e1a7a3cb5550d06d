"""Inputs by the thousand that are wrong: one message and exit code 2, or a finding.

    python scripts/checks/fuzz.py --inputs 20000 --seed 1
    python scripts/checks/fuzz.py --kinds stores --inputs 500
    python scripts/checks/fuzz.py --commands 20000 --seed 1 --log faults.jsonl
    python scripts/checks/fuzz.py --stores 2000 --seed 1 --start 1000

Configurations (TOML), command lines of every noun, data sets (JSONL) and stores (sound records with
fields missing or of another type, damaged manifests), in one process and without decoding: where a
model would be loaded an input has passed. Counts tracebacks, what refused commands leave behind,
hangs, and refusals without exactly one message; each with its place and its shortest input.

`--commands` are command lines of which most decode, with a tiny model that is made first;
`--stores` are stores with bits, bytes, files and fields gone or changed. Each is made of the seed
and its number alone: `--start` goes on where another run was ended, and other seeds may run beside.

Exit code 1 if anything was found.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the checkout this script belongs to
sys.path.insert(0, str(Path(__file__).parent))

from fuzzing import campaign, inputs
from fuzzing.harness import Findings, nothing_decoded
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

STORE = Path(__file__).parents[2] / "tests" / "experiments" / "data" / "small"
KINDS = ("configurations", "command_lines", "problems", "stores")


def fuzz(count: int, seed: int, kinds: Sequence[str] = KINDS) -> Findings:
    """Try so many inputs, as many of each kind; what was found."""
    findings = Findings()
    folder = Path(tempfile.mkdtemp(prefix="lil-fuzz-"))
    try:
        with nothing_decoded():
            for kind in kinds:
                _of_kind(findings, folder, kind, -(-count // len(kinds)), seed)
    finally:
        shutil.rmtree(folder)
    return findings


def _of_kind(findings: Findings, folder: Path, kind: str, count: int, seed: int) -> None:
    made = inputs.damaged(STORE) if kind == "stores" else getattr(inputs, kind)()
    strategy, attempt = made
    place = folder / kind
    place.mkdir()
    if kind == "command_lines":
        shutil.copytree(STORE, place / "store")
        (place / "essay.txt").write_text("word " * 300)

    @seeded(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def each(drawn: object) -> None:
        attempt(findings, place, drawn)

    each()


def campaigns(args: argparse.Namespace) -> Findings:
    """Commands that decode, damaged stores, or both; what was found."""
    findings = Findings()
    log = None if args.log is None else args.log.resolve()
    for count, numbered in ((args.commands, campaign.commands), (args.stores, campaign.damaged)):
        if not count:
            continue
        folder = Path(tempfile.mkdtemp(prefix="lil-fuzz-"))
        numbers = range(args.start, args.start + count)
        told = campaign.Told(findings, log, count)
        more = {"others": [STORE]} if numbered is campaign.damaged else {}
        try:
            numbered(findings, folder, args.seed, numbers, told, **more)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return findings


def main() -> int:
    """Try, print; 1 if anything was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--commands", type=int, help="so many commands that decode, instead")
    parser.add_argument("--stores", type=int, help="so many damaged stores, instead")
    parser.add_argument("--start", type=int, default=0, help="number of the first of them (0)")
    parser.add_argument("--log", type=Path, help="a line of JSON for each fault at once")
    args = parser.parse_args()
    if args.commands or args.stores:
        found = campaigns(args)
    else:
        found = fuzz(args.inputs, args.seed, args.kinds.split(","))
    for place, (count, shortest) in sorted(found.faults.items(), key=lambda one: -one[1][0]):
        print(f"{count:6d}  {place}\n        {shortest[:300]}")
    print(
        f"{found.inputs} inputs, seed {args.seed}: {found.refused} refused, {found.reached} would "
        f"load a model, {found.done} done; {sum(n for n, _ in found.faults.values())} faults in "
        f"{len(found.faults)} places"
    )
    return 1 if found.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
