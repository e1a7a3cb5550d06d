"""Stages run one after the other, each in a process group that ends with its time."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from gpu_checking.stages import ROOT, Stage

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
LAST_LINES = 30
# Run whatever is asked for: the others need what they find.
FIRST = ("environment", "engines")
# With less than this left a stage is not begun.
LEAST_SECONDS = 5.0


@dataclass
class Outcome:
    """What became of a stage.

    Attributes:
        reason: why it failed or was not run.
        first_failure: the first failing test, where tests say so.
        last_lines: of its output, where it failed.
        found: the JSON document it printed.
        output: the end of its output where that is a text and it passed.
    """

    name: str
    status: str
    reason: str | None = None
    seconds: float = 0.0
    first_failure: str | None = None
    last_lines: list[str] | None = None
    found: Any = None
    output: list[str] | None = None


def run_all(
    stages: list[Stage], minutes: float, only: list[str], told: Callable[[str], None]
) -> list[Outcome]:
    """Every stage, whatever became of those before it."""
    until, found, outcomes = time.monotonic() + 60 * minutes, dict[str, Any](), list[Outcome]()
    for stage in stages:
        left = until - time.monotonic()
        if only and stage.name not in (*only, *FIRST):
            outcome = Outcome(stage.name, NOT_RUN, "not asked for")
        elif reason := stage.obstacle(found):
            outcome = Outcome(stage.name, NOT_RUN, reason)
        elif left < LEAST_SECONDS:
            outcome = Outcome(stage.name, NOT_RUN, f"no time is left of {minutes:g} minutes")
        else:
            told(f"{stage.name} ...")
            outcome = run(stage, min(left, stage.seconds))
        found[stage.name] = outcome.found
        outcomes.append(outcome)
    return outcomes


def run(stage: Stage, limit: float) -> Outcome:
    """One stage, stopped with all it started after so many seconds."""
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *stage.arguments],
        cwd=ROOT,
        env={**os.environ, **stage.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if stage.json else subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    reason = None
    try:
        said, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        said, errors = process.communicate()
        reason = f"stopped after {limit:.0f} s"
    outcome = Outcome(stage.name, PASSED, seconds=round(time.monotonic() - started, 1))
    if reason is None and process.returncode:
        reason = f"exit code {process.returncode}"
    if stage.json:
        try:
            outcome.found = json.loads(said)  # a part may have failed, and the rest have numbers
        except ValueError as error:
            reason = reason or f"no JSON: {error}"
    lines = (said + (errors or "")).splitlines()
    if reason is not None:
        outcome.status, outcome.reason = FAILED, reason
        outcome.last_lines, outcome.first_failure = lines[-LAST_LINES:], first_failure(lines)
    elif not stage.json:
        outcome.output = lines[-LAST_LINES:]
    return outcome


def first_failure(lines: list[str]) -> str | None:
    """The first test that pytest's summary or a table of differences names."""
    for line in lines:
        if re.match(r"(FAILED|ERROR) \S|WRONG: ", line):
            return line
    return None


def document(outcomes: list[Outcome]) -> dict[str, Any]:
    """What is written down, without what is not there."""
    failed = [outcome.name for outcome in outcomes if outcome.status == FAILED]
    kept = [{k: v for k, v in asdict(o).items() if v is not None} for o in outcomes]
    return {"failed": failed, "stages": kept}


def table(outcomes: list[Outcome]) -> str:
    """A line a stage, and where those that failed did."""
    width = max(len(outcome.name) for outcome in outcomes)
    lines = []
    for o in outcomes:
        why = "" if o.reason is None else f": {o.reason}"
        took = f"{o.seconds:7.1f} s" if o.seconds else " " * 9
        lines.append(f"{o.name.ljust(width)} {took}  {o.status}{why}")
        if o.status == FAILED:
            lines += [
                f"    {line}" for line in [o.first_failure, *(o.last_lines or [])[-6:]] if line
            ]
    return "\n".join(lines)
