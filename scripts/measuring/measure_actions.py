"""Measure all that docs/actions.md tells, and write it: one command, some two hours on two cores.

    python scripts/measuring/measure_actions.py lil-out              # goes on where it was stopped
    python scripts/measuring/measure_actions.py lil-out --only full  # a part again

Each part leaves its answer in FOLDER/measured/NAME.json and is not done again while that is there;
sweeps keep what they decode in stores of their own. The last part writes docs/actions.json and the
tables of docs/actions.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from experiments.grid.presets import load

SCRIPTS = Path(__file__).parents[1]
CALIBRATED = ("guardian", "cycle", "recurrence", "stall", "margin", "chopper")
RATE = 0.005
CAPS = (8, 4, 2)  # the largest first: its store serves the others
KEEPING = ("h2o", "sink", "tova", "snapkv", "rkv", "raas", "random")


@dataclass(frozen=True)
class Part:
    """A command whose output, one JSON document, is kept under a name.

    Args:
        name: of the file.
        command: words behind the interpreter.
        out: whether it writes the file itself, by `--out FILE`.
        refusal: whether a refusal, exit code 2, is an answer, too.
        differs: whether exit code 1, not all is as it should be, is an answer, too.
    """

    name: str
    command: Sequence[str]
    out: bool = False
    refusal: bool = False
    differs: bool = False


def parts(folder: Path, workers: int) -> Iterator[Part]:
    """All of them, in an order in which each finds what it needs."""
    done = folder / "measured"

    def sweep(preset: str, store: str, *flags: str) -> list[str]:
        where = ("--out", str(folder / store), "--workers", str(workers))
        told = ("--no-figures", "--no-page", "--json")
        return ["-m", "experiments.cli", "sweep", "--preset", preset, *where, *told, *flags]

    def script(name: str, *flags: str) -> list[str]:
        return [str(SCRIPTS / f"{name}.py"), *flags]

    def readings(store: str) -> list[str]:
        # Of the newest sweep of the store, which is the one with the cap just measured.
        return script("measuring/trace_readings", str(folder / store), "--json")

    yield Part("demo", sweep("demo", "demo"))
    yield Part("actions", sweep("actions", "demo"))
    yield Part("penalties", sweep("penalties", "demo"))
    study = ("--split", "study", "--cap", "2x-full", "--detector", ",".join(CALIBRATED))
    few = ("--dataset", "easy,medium,hard", "--backend", "full,h2o,quest", "--budget", "256")
    yield Part("calibration", sweep("stopping", "calibration", *study, *few, "--limit", "400"))
    yield Part("chopper", script("training/check_chopper", str(folder / "calibration")), out=True)
    # The reasoner as it was before the last round of training: another tiny model.
    earlier = ("--model", str(SCRIPTS / "training" / "reasoner_training" / "earlier"), *study, *few)
    watched = ("--detector", ",".join(name for name in CALIBRATED if name != "chopper"))
    short = ("--limit", "400", "--max-new-tokens", "3800")
    yield Part("earlier", sweep("stopping", "earlier", *earlier, *short, *watched))
    for name in CALIBRATED:
        stores = (("calibration", RATE), ("earlier", RATE), ("demo", RATE), ("demo", 0.07))
        for store, rate in stores:
            if store == "demo" and name in ("stall", "margin", "chopper"):
                continue  # it recorded none of their numbers
            if store == "earlier" and name == "chopper":
                continue  # a chopper is one model's
            told = f"calibrated-{name}" + ("" if store == "calibration" else f"-{store}-{rate:g}")
            own = (
                "--detector",
                name,
                "--rate",
                f"{rate:g}",
                "--out",
                str(done / f"{told}.setting.json"),
            )
            flags = ("calibrate", str(folder / store), *own, "--json")
            yield Part(told, ["-m", "experiments.cli", *flags], refusal=True)
    watched = ("--detector", detectors(done))
    for cap in CAPS:
        capped = ("--cap", f"{cap}x-full", *watched)
        yield Part(f"greedy-{cap}", sweep("stopping", "stopping", *capped))
        yield Part(f"readings-greedy-{cap}", readings("stopping"))
    full = ("--backend", "full", "--limit", "200", "--dataset", "easy,medium,hard")
    # The newest sweep of that store is the one with the smallest cap: every trace is decoded again.
    again = (
        "--check-live",
        "--decode",
        "1000000",
        "--json",
        "--detector",
        "recurrence,stall,margin",
    )
    live = ["-m", "experiments.cli", "replay", str(folder / "stopping"), *again]
    yield Part("live", live, differs=True)
    yield Part("full", sweep("stopping", "full", *full, *watched))
    kept = [f"backend_params.{name}.keep_prompt=true" for name in KEEPING]
    yield Part("dropped", sweep("keep-prompt", "dropped"))
    flags = tuple(word for one in kept for word in ("--set", one))
    yield Part("kept", sweep("keep-prompt", "kept", *flags))
    pairs = script("measuring/kept_prompts", str(folder / "dropped"), str(folder / "kept"))
    yield Part("pairs", pairs)
    quick = "cycle(outside=0),recurrence(outside=0)"  # as they are while a model thinks
    watched = script("checks/check_ordinary", "--json", "--detector", f"{detectors(done)},{quick}")
    yield Part("ordinary", watched, differs=True)
    yield Part("cost", script("bench/detector_cost", "--json"))
    yield Part("times", script("measuring/time_actions"), out=True)


def detectors(done: Path) -> str:
    """Those of the preset, and what was calibrated, with both actions."""
    entries = list(load("stopping").detectors)
    for name in CALIBRATED:
        file = done / f"calibrated-{name}.json"
        found = json.loads(file.read_text()) if file.exists() else {}
        if "file" in found:
            entries += [found["file"], f"{found['file']}:answer"]
    return ",".join(entries)


def measure(part: Part, file: Path, console: Console) -> None:
    """Run it, and keep its answer once that is whole.

    Raises:
        RuntimeError: it failed.
    """
    console.print(f"{part.name}: {' '.join(part.command)}", highlight=False, soft_wrap=True)
    partial = file.with_suffix(".partial")
    command = [sys.executable, *part.command, *(("--out", str(partial)) if part.out else ())]
    errors = subprocess.PIPE if part.refusal else None
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
    text = partial.read_text() if part.out and not done.returncode else done.stdout
    if done.returncode == 2 and part.refusal:
        text = json.dumps({"refused": done.stderr.strip().splitlines()[-1]})
    elif done.returncode and not (done.returncode == 1 and part.differs):
        raise RuntimeError(f"{part.name}: exit code {done.returncode}")
    json.loads(text)
    partial.write_text(text)
    os.replace(partial, file)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", help="names of parts, instead of all")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    console = Console(stderr=True)
    done = args.folder / "measured"
    done.mkdir(parents=True, exist_ok=True)
    for part in parts(args.folder, args.workers):
        file = done / f"{part.name}.json"
        if not file.exists() and (not args.only or part.name in args.only):
            measure(part, file, console)
    if args.only:
        return 0
    command = [sys.executable, str(SCRIPTS / "pages" / "actions_table.py"), "--take", str(done)]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
