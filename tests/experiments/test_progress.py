"""The progress of a sweep in a log: how long it took, and how long it will take."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from experiments.cli import progress

CELL = SimpleNamespace(name="infllm 1024 + lz", dataset="/data/[kinds]/problems.jsonl")


def test_a_log_tells_how_long_it_took_and_will_take(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=False, color_system=None)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr(progress, "monotonic", lambda: float(next(clock)))
    bars = progress.Bars()
    bars.plan(4, 0, 400.0)
    bars.configuration(CELL)
    bars.run_done(100.0)
    bars.configuration(CELL)
    first, second = (line for line in out.getvalue().splitlines() if "/4 runs" in line)
    assert "time left not known yet" in first
    # A quarter is done, so three times as long as until now is left.
    words = second.replace(",", "").split()
    taken, left = words[words.index("so") - 1], words[words.index("left:") - 1]
    seconds = [sum(int(n) * 60**i for i, n in enumerate(t.split(":")[::-1])) for t in (taken, left)]
    assert seconds[0] >= 300
    assert seconds[1] == 3 * seconds[0]
