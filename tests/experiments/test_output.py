"""What is printed arrives: in any encoding, or with one message that it did not."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.cli import main
from experiments.cli.output import careful

ROOT = Path(__file__).parents[2]
CapFd = pytest.CaptureFixture[str]


def test_a_command_prints_in_any_encoding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("so so so\n" * 400)
    for encoding in ("ascii", "cp1252"):
        taken = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", taken)
        assert main(["curve", str(tmp_path / "text")]) == 0
        assert sys.stdout is taken  # as it was
        taken.seek(0)
        printed = taken.read()
        assert ("?" if encoding == "ascii" else "—") in printed
        assert " 3600 " in printed


FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")


@needs_full
@pytest.mark.parametrize(
    "arguments",
    ["", "list presets", "list presets --json", "--version", "curve --help"],
)
def test_a_full_disk_below_stdout_is_one_message(
    arguments: str, monkeypatch: pytest.MonkeyPatch, capfd: CapFd
) -> None:
    typed = arguments.split()
    with FULL.open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(typed) == 2
    # Closing the file wrote what was left, without a message: the end of a process does the same.
    messages = capfd.readouterr().err.splitlines()
    errors = [line for line in messages if line.startswith("lil: error")]
    expected = "lil: error: output = 'stdout': expected a file or pipe that can be written to"
    assert [e.partition(" (")[0] for e in errors] == ([expected] if typed else [])
    assert not any("Traceback" in line for line in messages)


@needs_full
def test_a_log_that_cannot_be_written_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: CapFd
) -> None:
    with FULL.open("w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert main(["list", "presets", "--json"]) == 0
    assert capfd.readouterr().out.startswith('{"presets"')


def test_no_stream_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["list", "presets"]) == 0
    assert sys.stdout is None


@needs_full
def test_a_real_process_ends_with_2_and_a_closed_pipe_without_a_message() -> None:
    command = [sys.executable, "-m", "experiments.cli", "--version"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    with FULL.open("w") as full:
        done = subprocess.run(command, env=env, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, env=env, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_whatever_library_prints_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        taken = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        monkeypatch.setattr(sys, name, taken)
        with careful():
            print("a\ud800 \u22125", file=getattr(sys, name))
        taken.seek(0)
        assert taken.read() == "a? \u22125\n"
