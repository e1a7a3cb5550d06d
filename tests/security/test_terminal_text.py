"""Whatever a model, a problem or a file's name says, it steers no terminal."""

from __future__ import annotations

import io
import json
import re
import sys
from typing import Any

import pytest
from hostile_files import BAD, Hostile

from experiments.cli import main
from experiments.cli.console import Console
from experiments.cli.output import careful, shown

STEERING = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
#: What a console of ours writes itself: colours, and moves of its progress bar.
OURS = re.compile(r"\x1b\[[0-9;]*[mKAG]|\x1b\[\?25[lh]|\r")


def test_no_command_passes_it_on(
    hostile: Hostile, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile.folder)
    model = ["--model", hostile.model, "--dataset", hostile.problems, "--scorer", "exact"]
    few = ["--max-new-tokens", "20", "--temperature", "1", "--threads", "1"]
    for command in (
        ["run", *model, *few, "--detector", "guardian"],
        ["sweep", *model, "--dry-run"],
        ["replay", hostile.store, "--set", "guardian.f=3,5"],
        ["show", hostile.store, "full", "<b>"],
        ["curve", hostile.problems],
        ["\x1b[2Jrun"],
        ["run", "--\x1b[2J"],
        ["sweep", "--set", "\x1b[2J=\x1b[2J"],
    ):
        try:
            code = main(command)
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = "".join(capsys.readouterr())
        assert code in (0, 2), command
        assert printed
        assert STEERING.findall(printed) == [], command
    assert main(["run", *model, *few, "--json"]) == 0
    first: dict[str, Any] = json.loads(capsys.readouterr().out)["samples"][0]
    assert BAD in first["prompt"]  # a document holds it as JSON


def test_a_terminal_gets_our_colours_and_nothing_else(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    monkeypatch.chdir(hostile.folder)
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert main(["report", hostile.store, "--no-figures", "--no-page"]) == 0
    assert "\x1b[" in out.getvalue()  # it is taken for a terminal
    assert STEERING.findall(OURS.sub("", out.getvalue() + err.getvalue())) == []


def test_each_control_is_written_out_and_every_script_stays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for code in (*range(9), 11, 12, 13, 27, 127, 128, 159, 0x202A, 0x202E, 0x2066, 0x200E, 0x61C):
        escaped = f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
        assert shown(f"a{chr(code)}b\n\tc") == f"a{escaped}b\n\tc"
    text = "Größe 汉字 עברית العربية हिन्दी 👩‍👩‍👧 ≤ ± ─"
    with careful():
        Console().plain(text)
    assert capsys.readouterr().out == f"{text}\n"
