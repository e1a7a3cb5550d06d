"""Decode what the reasoner's half of docs/study/plan.md asks for: sweeps, level by level.

    python scripts/measuring/study/measure_study.py lil-out/study --dry-run     # what is to be done
    python scripts/measuring/study/measure_study.py lil-out/study --seconds 7200  # it goes on
    python scripts/measuring/study/measure_study.py lil-out/study --held-out      # those for last

Each part is a sweep; parts of one level share a store, so that full attention is decoded once. Its
answer is FOLDER/measured/NAME.json, and it is not done again while that is there. `--model DIR`
asks the same of another model, such as a recipe without one of its parts, in stores of that
folder's name. `scripts/measuring/study/study_readings.py` reads the stores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

sys.path.append(str(Path(__file__).parents[1]))

from measure_actions import Part, measure

from experiments.reasoner import problem
from experiments.reasoner.judge import pieces

#: First problems of the split `test`; those held out come after all sentences.
CHOSEN, HELD_OUT, SPLIT = 1000, 2000, "test"
#: How many: of the primary comparisons, chosen and held out, and of all else.
PRIMARY, PRIMARY_HELD_OUT, PROBLEMS = 600, 400, 200
#: And of a control that costs as much as all others together.
FEW = 50
LEVELS = ("hard", "medium", "retold")
#: Budgets of the methods on `hard`; on the other levels half of each.
BUDGETS: Mapping[str, tuple[int, ...]] = {
    "quest": (96, 128, 256),
    "infllm": (384, 512, 640),
    "h2o": (384, 512, 768),
    "sink": (512, 768, 1024),
}
#: Of the oracle alone, on all levels.
SMALLEST = (8, 16, 32)
CAP, LONGEST = 8, 4096
#: Replayed over every trace: they stop, and read nothing but tokens.
DETECTORS = (
    "guardian(f=250)", "guardian(f=100)", "cycle", "cycle(repeats=4, min_tokens=100)", "recurrence",
)  # fmt: skip
#: What is decoded again with an action, on the methods' own cells: all detectors, so that they have
#: the names that they have above; and on the cells that keep every key, which `densify` needs.
ACTING = tuple(f"{one}:answer" for one in DETECTORS)
DENSIFYING = tuple(f"{one}:densify" for one in DETECTORS)
KEEPING = ("quest", "infllm")
#: Penalties, decoded beside each method's middle budget on the first problems, and beside full
#: attention on as many as false stops. DRY is not among them: it spoils full attention's texts.
PENALTIES = "lz(alpha=0.05),lz(alpha=0.15),repetition(penalty=1.1),frequency(strength=0.1)"
PENALISED = 100
#: Tokens that a method needs beside a prompt that stays, and some that its text may use.
ROOM = 8


def budgets(level: str) -> dict[str, tuple[int, ...]]:
    """Budgets of the methods on a level."""
    parts = 1 if level == "hard" else 2
    return {name: tuple(one // parts for one in some) for name, some in BUDGETS.items()}


def longest_prompt(level: str, first: int, n: int) -> int:
    """Tokens of the longest prompt of these problems."""
    return max(len(pieces(problem(level, SPLIT, at).prompt)) for at in range(first, first + n))


def methods(level: str) -> list[str]:
    """The methods' cells of a level."""
    return [f"{name}(budget={one})" for name, some in budgets(level).items() for one in some]


def middle(level: str) -> list[str]:
    """Each method at the second of its budgets."""
    return [f"{name}(budget={some[1]})" for name, some in budgets(level).items()]


def oracle(level: str, shipped: bool = True) -> list[str]:
    """The oracle at every budget of a method, and further down.

    Args:
        level: of the problems.
        shipped: of the model that ships; of others at the least of these budgets and further down.
    """
    of = every(level) if shipped else every(level)[:1]
    return [f"oracle(budget={one})" for one in (*SMALLEST, *of)]


def every(level: str) -> list[int]:
    """All budgets of the methods, each once."""
    return sorted({one for some in budgets(level).values() for one in some})


def controls(level: str) -> list[str]:
    """The other controls at the same budgets."""
    return [f"{name}(budget={one})" for name in ("random", "window") for one in every(level)]


def uniform(level: str) -> list[str]:
    """H2O's defect at its budgets: it reads every key of texts that do not end, so on few."""
    return [f"h2o_uniform(budget={one}, dense_layers=0)" for one in budgets(level)["h2o"]]


def kept(level: str, longest: int) -> tuple[list[str], list[str]]:
    """The methods that may keep the prompt: those that can, and those it leaves no room.

    Args:
        level: of the problems.
        longest: prompt of them, in tokens.
    """
    of = budgets(level)
    asked = [(n, b) for n, some in (("h2o", of["h2o"]), ("sink", of["sink"])) for b in some]
    asked += [("random", one) for one in every(level)]
    told = [
        (f"{name}(budget={one}, keep_prompt=true)", one - longest >= ROOM) for name, one in asked
    ]
    return [cell for cell, fits in told if fits], [cell for cell, fits in told if not fits]


def parts(
    folder: Path, first: int, primary: int, n: int, workers: int, model: str | None = None
) -> Iterator[Part]:
    """All of them, the most wanted first.

    Args:
        folder: of the stores.
        first: problem.
        primary, n: problems of the methods' cells on `hard`, and of all else.
        workers: of each sweep.
        model: a folder, instead of the model that ships.
    """
    suffix = ("" if model is None else f"-{Path(model).name}") + f"-{first}"

    most = {"uniform": FEW, "penalties": PENALISED}

    def sweep(
        level: str, kind: str, backends: Sequence[str], detectors: Sequence[str], *more: str
    ) -> Part:
        count = primary if level == "hard" and kind in ("methods", "honest") else n
        count = min(count, most.get(kind, count))
        command = [
            *("-m", "experiments.cli", "sweep", "--preset", "demo", "--dataset", level),
            *("--split", SPLIT, "--offset", str(first), "--limit", str(count), "--null", "dither"),
            *("--backend", ",".join(("full", *backends)), "--cap", f"{CAP}x-full"),
            *("--max-new-tokens", str(LONGEST), "--detector", ",".join(detectors)),
            *("--workers", str(workers), "--out", str(folder / f"{level}{suffix}")),
            *(() if model is None else ("--model", model)),
            *more,
            *("--no-figures", "--no-page", "--json"),
        ]
        return Part(f"{level}-{kind}{suffix}", command)

    for level in LEVELS:
        yield sweep(level, "methods", [*methods(level), *oracle(level, model is None)], DETECTORS)
    for level in LEVELS:
        fits, _ = kept(level, longest_prompt(level, first, n))
        if fits:
            yield sweep(level, "kept", fits, DETECTORS)
    for level in LEVELS:
        yield sweep(level, "controls", controls(level), DETECTORS)
    for level in LEVELS:
        yield sweep(level, "uniform", uniform(level), DETECTORS)
    for level in LEVELS:
        yield sweep(level, "answers", methods(level), ACTING)
    for level in LEVELS:
        keeping = [one for one in methods(level) if one.split("(")[0] in KEEPING]
        yield sweep(level, "densify", keeping, DENSIFYING)
    penalties = ("--penalty", PENALTIES, "--null", "auto")
    for level in LEVELS:
        yield sweep(level, "penalties", middle(level), DETECTORS, *penalties)
    for level in LEVELS:
        yield sweep(level, "honest", [], DETECTORS, *penalties)


def foreseen(part: Part) -> dict[str, int]:
    """Runs of a part, those stored, and its tokens as its dry run reckons them.

    Raises:
        RuntimeError: it was refused.
    """
    command = [sys.executable, *part.command, "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{part.name}: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    # Tokens to expect are known once full attention's are: see `lil sweep --dry-run`.
    names = ("runs", "stored", "tokens_expected", "runs_of_unknown_length", "tokens_at_most")
    return {name: int(found[name] or 0) for name in names}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", help="names of parts, or how they begin")
    parser.add_argument("--seconds", type=float, help="begin no part after so many")
    parser.add_argument("--held-out", action="store_true", help="the problems kept for last")
    parser.add_argument("--first", type=int, help="other problems, to try it out")
    parser.add_argument("--problems", type=int, help="of each level, all cells alike")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", help="a folder, instead of the model that ships")
    parser.add_argument("--dry-run", action="store_true", help="runs and tokens of each part")
    args = parser.parse_args(argv)
    first = args.first if args.first is not None else HELD_OUT if args.held_out else CHOSEN
    n = PROBLEMS if args.problems is None else args.problems
    wanted = PRIMARY_HELD_OUT if first == HELD_OUT else PRIMARY
    primary = wanted if args.problems is None else args.problems
    console, started = Console(stderr=True), time.monotonic()
    for level in LEVELS:
        for cell in kept(level, longest_prompt(level, first, n))[1]:
            console.print(f"{level}: {cell} is left out, the longest prompt has no room in it")
    done = args.folder / "measured"
    total = 0
    for part in parts(args.folder, first, primary, n, args.workers, args.model):
        file = done / f"{part.name}.json"
        if args.only and not any(part.name.startswith(one) for one in args.only):
            continue
        if args.dry_run:
            found = foreseen(part)
            total += found["runs"]
            print(json.dumps({"part": part.name, **found}))
            continue
        if file.exists():
            continue
        if args.seconds is not None and time.monotonic() - started > args.seconds:
            console.print(f"{part.name}: left for another time")
            continue
        done.mkdir(parents=True, exist_ok=True)
        measure(part, file, console)
        console.print(f"  {time.monotonic() - started:.0f} s so far")
    if args.dry_run:
        print(json.dumps({"part": "all", "runs": total}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
