"""Check and measure the project on a machine with a GPU, each stage in a process with a limit.

    scripts/gpu_check --out gpu.json
    scripts/gpu_check --only "whole runs" --minutes 8

Nothing is installed or downloaded. The document holds each stage's status, seconds and result; the
error stream shows a line a stage. A stage whose package or device is missing is listed with the
reason. The exit code is 1 if a stage fails. The standard library alone runs this program.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LAST_LINES = 30

#: Prints Python, packages and GPUs.
ENVIRONMENT = """
import importlib.metadata, json, os, platform, sys, torch
from attention.engines import ENGINES, select

def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None

packages = ("torch", "triton", "flash-attn", "transformers", "numpy", "vllm")
gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps({
    "python": sys.version.split()[0],
    "machine": platform.machine(),
    "cpus": os.cpu_count(),
    "packages": {name: version(name) for name in packages},
    "cuda": torch.version.cuda or torch.version.hip,
    "gpus": [
        {"name": g.name, "bytes": g.total_memory, "capability": [g.major, g.minor]} for g in gpus
    ],
    "auto": {str(d)[6:]: select("auto", torch.device("cuda"), d).name
             for d in (torch.float32, torch.bfloat16)} if gpus else {},
}))
"""


@dataclass(frozen=True)
class Stage:
    """One subprocess of Python.

    Attributes:
        name: of the stage.
        arguments: of Python.
        seconds: its limit.
        needs: packages without which it is not run.
        json: whether its output is a JSON document.
    """

    name: str
    arguments: tuple[str, ...]
    seconds: float
    needs: tuple[str, ...] = ()
    json: bool = False


@dataclass
class Outcome:
    """What became of a stage: `passed`, `failed` or `not run`, with the reason."""

    name: str
    status: str
    reason: str | None = None
    seconds: float = 0.0
    result: Any = None
    last_lines: list[str] | None = None


def stages(quick: bool) -> list[Stage]:
    """All, what is right first, then what is measured; a short loan gives the most."""
    fewer = ("--quick",) if quick else ()
    pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "-m", "")
    step, large = ("scripts/bench/gpu_step.py", "--json"), ("--shape", "llama-8b")
    cells = "8x8192,32x8192" if quick else "8x8192,32x8192,1x8192,8x32768"
    sweep = "sweep --dataset hard --limit 25 --backend full,h2o,quest,sink,infllm --budget 256"
    sweep += " --max-new-tokens 500 --cap 2x-full --no-figures --out"
    out = tempfile.mkdtemp(prefix="gpu_check_")
    return [
        Stage("whole runs", ("scripts/checks/check_devices.py", *fewer), 120),
        Stage("steps, 1.5B", (*step, "--cells", cells, "--fill"), 150, json=True),
        Stage("steps, 8B", (*step, *large, "--cells", "8x8192,32x8192"), 100, json=True),
        Stage("sweep", ("-m", "experiments.cli", *sweep.split(), out), 120),
        Stage("engine tests", (*pytest, "tests/attention/test_engines.py"), 100, ("pytest",)),
        Stage(
            "paged kernel",
            (*pytest, "-k", "outputs", "tests/lil/serving/test_flash_layers.py"),
            200,
            ("pytest", "vllm.vllm_flash_attn"),
        ),
    ]


def is_installed(package: str) -> bool:
    """Whether a package, or a module inside one, can be imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:
        return False


def run(stage: Stage, limit: float) -> Outcome:
    """Run a stage; at its limit it is stopped with all that it started."""
    environment = {**os.environ, "LIL_TEST_DEVICE": "cuda"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *stage.arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    outcome = Outcome(stage.name, "passed")
    try:
        output, errors = process.communicate(timeout=limit)
        if process.returncode:
            outcome.reason = f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        outcome.reason = f"stopped after {limit:.0f} s"
    outcome.seconds = round(time.monotonic() - began, 1)
    if stage.json:
        try:
            outcome.result = json.loads(output)
        except ValueError as error:
            outcome.reason = outcome.reason or f"no JSON: {error}"
    if outcome.reason is not None:
        outcome.status = "failed"
    if outcome.reason is not None or not stage.json:
        outcome.last_lines = (output + errors).splitlines()[-LAST_LINES:]
    return outcome


def run_all(
    planned: Sequence[Stage], gpus: Sequence[Any], minutes: float, only: Sequence[str]
) -> list[Outcome]:
    """Every stage, whatever became of those before it."""
    end, outcomes = time.monotonic() + 60 * minutes, []
    for stage in planned:
        missing = [name for name in stage.needs if not is_installed(name)]
        left = end - time.monotonic()
        if only and stage.name not in only:
            outcome = Outcome(stage.name, "not run", "not in --only")
        elif not gpus:
            outcome = Outcome(stage.name, "not run", "no CUDA device")
        elif missing:
            outcome = Outcome(stage.name, "not run", f"no package {', '.join(missing)}")
        elif left < 5:
            outcome = Outcome(stage.name, "not run", f"no time is left of {minutes:g} minutes")
        else:
            outcome = run(stage, min(left, stage.seconds))
        reason = "" if outcome.reason is None else f": {outcome.reason}"
        line = f"{stage.name:16} {outcome.seconds:7.1f} s  {outcome.status}{reason}"
        print(line, *(outcome.last_lines or [])[-6:], sep="\n    ", file=sys.stderr, flush=True)
        outcomes.append(outcome)
    return outcomes


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    flags = argparse.ArgumentParser(
        prog="scripts/gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument("--out", type=Path, help="a file for the JSON; stdout by default")
    flags.add_argument("--minutes", type=float, default=8.0, help="for all stages (8)")
    flags.add_argument("--quick", action="store_true", help="fewer cases")
    flags.add_argument("--only", action="append", default=[], help="this stage; may be repeated")
    args = flags.parse_args(argv)
    planned = stages(args.quick)
    if unknown := set(args.only) - {stage.name for stage in planned}:
        names = ", ".join(stage.name for stage in planned)
        flags.error(f"--only {unknown.pop()!r}: expected one of {names}")
    environment = run(Stage("environment", ("-c", ENVIRONMENT), 120, json=True), 120)
    gpus = (environment.result or {}).get("gpus", [])
    outcomes = [environment, *run_all(planned, gpus, args.minutes, args.only)]
    failed = [outcome.name for outcome in outcomes if outcome.status == "failed"]
    text = json.dumps({"failed": failed, "stages": [asdict(o) for o in outcomes]}, indent=1)
    if args.out is None:
        print(text)
    else:
        args.out.write_text(text + "\n", encoding="utf-8")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
