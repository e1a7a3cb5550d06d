"""Helping processes end with the work they were started for."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from attention.errors import InvalidValue
from experiments.store.files.filesystem import whole_file
from experiments.store.workers import processes


def write_slowly(path: Path, seconds: float) -> None:
    """A file that is there whole after some seconds, and half before."""
    with whole_file(path) as temporary:
        temporary.write_text("half")
        path.with_suffix(".begun").touch()
        time.sleep(seconds)
        temporary.write_text("whole")


def interrupted(target: Path, begun: Path) -> None:
    with processes(1) as pool:
        pool.submit(write_slowly, target, 90)
        while not begun.exists():
            time.sleep(0.05)
        raise KeyboardInterrupt


def test_an_interrupt_ends_what_is_being_done_and_leaves_nothing_half(tmp_path: Path) -> None:
    target, begun = tmp_path / "figure.png", tmp_path / "figure.begun"
    with pytest.raises(KeyboardInterrupt):
        interrupted(target, begun)
    assert [path.name for path in tmp_path.iterdir()] == [begun.name]


def test_what_was_asked_for_is_waited_for(tmp_path: Path) -> None:
    target = tmp_path / "figure.png"
    with processes(1) as pool:
        pool.submit(write_slowly, target, 0.1).result()
    assert target.read_text() == "whole"


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_one_killed_for_want_of_memory_is_said_in_one_message() -> None:
    with pytest.raises(InvalidValue, match="one of 2 was killed"), processes(2) as pool:
        pool.submit(killed).result()


def test_they_have_one_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    names = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"]
    with processes(1) as pool:
        assert list(pool.map(os.getenv, names)) == ["1", "1"]
    assert [os.getenv(name) for name in names] == ["3", None]
