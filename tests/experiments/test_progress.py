"""The progress of a sweep: what is left stays readable, in every width and in a log."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from experiments.cli import progress

LONG = SimpleNamespace(
    name="infllm 1024 + lz", dataset="/data/of/all/[kinds]/problems-of-2026.jsonl"
)


def _bars(monkeypatch: pytest.MonkeyPatch, width: int, terminal: bool) -> tuple[Any, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr(progress, "monotonic", lambda: float(next(clock)))
    return progress.Bars(), out


def _line(bars: Any, width: int) -> str:
    """What the bar shows now."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None)
    console.print(bars._progress.make_tasks_table(bars._progress.tasks))
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 72, 80, 100, 160])
def test_the_time_left_is_never_cut(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bars, _ = _bars(monkeypatch, width, terminal=True)
    bars.plan(1632, 0, 4000.0)
    bars.configuration(LONG)
    for _ in range(3):
        bars.step(500)
        bars.run_done(1000.0)
    (task,) = bars._progress.tasks
    monkeypatch.setattr(type(task), "time_remaining", 12_345.0)
    monkeypatch.setattr(type(task), "elapsed", 36_000.0)
    (line,) = _line(bars, width).splitlines()
    assert "3/1632" in line
    assert "75%" in line
    assert "10:00:00 left 3:25:45" in line
    assert "infllm 1024" in line
    assert ("tok/s" in line) == (width >= 72)
    assert len(line) <= width


def test_a_log_tells_how_long_it_took_and_will_take(monkeypatch: pytest.MonkeyPatch) -> None:
    bars, out = _bars(monkeypatch, 80, terminal=False)
    bars._names = {LONG.dataset: "problems-of-2026"}
    bars.plan(4, 0, 400.0)
    bars.configuration(LONG)
    bars.run_done(100.0)
    bars.configuration(LONG)
    first, second = (line for line in out.getvalue().splitlines() if "infllm" in line)
    bars.configuration(LONG, (LONG.dataset, "easy"))
    assert out.getvalue().endswith("infllm 1024 + lz · problems-of-2026, easy\n")
    assert "0/4 runs" in first
    assert "time left not known yet: infllm 1024 + lz · problems-of-2026" in first
    # A quarter is done, so three times as long as until now is left.
    words = second.replace(",", "").split()
    taken, left = words[words.index("so") - 1], words[words.index("left:") - 1]
    seconds = [sum(int(n) * 60**i for i, n in enumerate(t.split(":")[::-1])) for t in (taken, left)]
    assert seconds[0] >= 300
    assert seconds[1] == 3 * seconds[0]
