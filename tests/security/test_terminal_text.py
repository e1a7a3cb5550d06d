"""Whatever a model, a problem or a file's name says, it steers no terminal."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from fuzzing.harness import STEERING
from hostile_files import BAD, Hostile

from experiments.cli import main
from experiments.cli.console import Console
from experiments.cli.output import careful, shown

#: What a console of ours writes itself: colours, and moves of its progress bar.
OURS = re.compile(r"\x1b\[[0-9;]*[mKAG]|\x1b\[\?25[lh]|\r")


def _commands(hostile: Hostile) -> dict[str, list[str]]:
    asked = ["--model", hostile.model, "--dataset", hostile.problems, "--scorer", "exact"]
    few = ["--max-new-tokens", "20", "--temperature", "1", "--threads", "1"]
    return {
        "run": ["run", *asked, *few, "--detector", "guardian"],
        "dry run": ["sweep", *asked, "--dry-run"],
        "report": ["report", hostile.store, "--no-figures", "--no-page"],
        "page": ["report", hostile.store, "--no-figures"],
        "sweeps": ["report", hostile.store, "--sweeps"],
        "two stores": ["report", hostile.store, "d", "--no-figures", "--no-page"],
        "replay": ["replay", hostile.store, "--f", "3,5"],
        "calibrate": ["calibrate", hostile.store, "--detector", "guardian"],
        "curve": ["curve", hostile.problems],
        "ids": ["curve", hostile.store],
        "chopper": ["chopper", "train", "--from", hostile.store],
        "no model": ["run", "--model", f"./no{hostile.model}"],
        "no problems": ["run", "--dataset", f"./no{hostile.problems}"],
        "no noun": ["\x1b[2Jrun"],
        "no flag": ["run", "--\x1b[2J"],
        "no preset": ["sweep", "--preset", "\x1b[2J"],
        "no setting": ["sweep", "--set", "\x1b[2J=\x1b[2J"],
        "no budget": ["sweep", "--budget", "\x1b[2J"],
    }


@pytest.fixture(autouse=True)
def _inside(hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hostile.folder)


NAMES = tuple(_commands(Hostile(Path(), "m", "q", "s")))


@pytest.mark.parametrize("name", NAMES)
def test_no_command_passes_it_on(
    name: str, hostile: Hostile, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "two stores":
        shutil.copytree(hostile.store, "d")
    try:
        code = main(_commands(hostile)[name])
    except SystemExit as stop:
        code = int(stop.code or 0)
    said = capsys.readouterr()
    assert code in (0, 2)
    assert said.out + said.err
    assert STEERING.findall(said.out + said.err) == []
    if name not in ("calibrate", "chopper"):  # which have nothing to say of it
        assert re.search(r"\\x1b|\\u202e", said.out + said.err)


def test_a_terminal_gets_our_colours_and_nothing_else(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert main(["report", hostile.store, "--no-figures", "--no-page"]) == 0
    assert main(_commands(hostile)["run"]) == 0
    assert "\x1b[" in out.getvalue()  # it is taken for a terminal
    assert STEERING.findall(OURS.sub("", out.getvalue() + err.getvalue())) == []


def test_one_document_holds_it_as_json(
    hostile: Hostile, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*_commands(hostile)["run"], "--json"]) == 0
    out = capsys.readouterr().out
    assert STEERING.findall(out) == []
    first: dict[str, Any] = json.loads(out)["samples"][0]
    assert BAD in first["prompt"]
    assert BAD.strip() in first["gold"]


def test_what_others_print_and_raise(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from attention.errors import InvalidValue
    from experiments.cli.commands import curve

    def hub(*_: object) -> None:
        print(f"a library {BAD}")
        print(f"a warning {BAD}", file=sys.stderr)
        raise InvalidValue("model", BAD, f"a hub id that can be reached ({BAD})")

    monkeypatch.setattr(curve._Text, "read", hub)
    assert main(["curve", "x"]) == 2
    said = capsys.readouterr()
    assert STEERING.findall((said.out + said.err).replace("\r", "")) == []
    assert said.err.count("lil: error") == 1
    assert "\r" not in said.err.partition("lil: error")[2]


@pytest.mark.parametrize("character", [*map(chr, (*range(9), 11, 12, 13, 27, 127, 128, 159))])
def test_each_control_is_written_out(character: str) -> None:
    assert shown(f"a{character}b\n\tc") == f"a\\x{ord(character):02x}b\n\tc"


@pytest.mark.parametrize(
    "mark", "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u061c"
)
def test_each_mark_of_direction_is_written_out(mark: str) -> None:
    assert shown(f"a{mark}b") == f"a\\u{ord(mark):04x}b"


def test_text_of_every_script_stays(capsys: pytest.CaptureFixture[str]) -> None:
    text = "Größe 汉字 עברית العربية हिन्दी 👩‍👩‍👧 ≤ ± ─"
    assert shown(text) == text
    with careful():
        Console().print(text, soft_wrap=True, markup=False, highlight=False)
    assert capsys.readouterr().out == f"{text}\n"
