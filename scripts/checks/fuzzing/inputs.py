"""Configurations, command lines, problems and stores to try, by strategies of hypothesis."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from fuzzing import stores
from fuzzing.harness import Findings, tried
from fuzzing.values import anything, scalars, texts

#: One kind of input: its strategy, and what tries one.
Kind = tuple[st.SearchStrategy[Any], Callable[[Findings, Path, Any], None]]

_TABLES = ("backend_params", "penalty_params", "detector_params", "action_params")


# ---------------------------------------------------------------- configurations


def configurations() -> Kind:
    """TOML files of known and unknown keys with any value, or no TOML at all."""
    import dataclasses

    from experiments.grid.config import Config

    keys = [key.name for key in dataclasses.fields(Config)]
    names = st.sampled_from((*keys, *_TABLES, "bugdets", ""))
    methods = st.sampled_from(("quest", "guardian", "lz", "full", "answer", "nothing", "a.b:C"))
    parameters = st.sampled_from(("page", "f", "rate", "alpha", "budget", "cue", "name", "x"))
    tables = st.dictionaries(methods, st.dictionaries(parameters, scalars(), max_size=2))
    values = st.one_of(anything(), tables)
    document = st.dictionaries(names, values, min_size=1, max_size=3).map(_toml)
    broken = st.tuples(document, st.integers(0, 60), st.sampled_from(('"', "[", "\x00", "=", "\n")))
    return st.one_of(document, broken.map(lambda b: b[0][: b[1]] + b[2] + b[0][b[1] :])), _config


def _toml(values: Mapping[str, Any]) -> str:
    return "".join(f"{json.dumps(key)} = {_toml_value(value)}\n" for key, value in values.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, (int, float)):
        # Python refuses to write an integer of thousands of digits; nobody types one.
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {_toml_value(inner)}" for key, inner in value.items())
        return "{" + ", ".join(pairs) + "}"
    return json.dumps("" if value is None else value)


def _config(findings: Findings, folder: Path, text: str) -> None:
    (folder / "x.toml").write_text(text, encoding="utf-8", errors="surrogatepass")
    tried(findings, folder, ["sweep", "--preset", "x.toml", "--out", "out"], f"TOML: {text!r}")


# ---------------------------------------------------------------- command lines


def command_lines() -> Kind:
    """Every noun with its own flags and any value, its arguments, and flags it has not."""
    from experiments.cli.entry import NOUNS

    nouns = []
    for noun in NOUNS:
        flags, choices = _flags(noun)
        one = st.tuples(st.sampled_from(flags), texts())
        words = st.lists(one, max_size=3).map(lambda pairs: [t for f, v in pairs for t in f(v)])
        first = st.one_of(st.sampled_from(choices), texts().map(lambda t: [t]), st.just([]))
        nouns.append(st.tuples(st.just([noun]), first, words).map(lambda p: [*p[0], *p[1], *p[2]]))
    return st.one_of(*nouns, st.lists(texts(), max_size=3)), _command


def _flags(noun: str) -> tuple[list[Callable[[str], list[str]]], list[list[str]]]:
    from experiments.cli.parser import Parser

    parser = Parser(prog="lil")
    importlib.import_module(f"experiments.cli.nouns.{noun}").add_arguments(parser)
    settings = (
        "backend_params.quest.page={}",
        "detector_params.guardian.f={}",
        "guardian.f={}",
        "budget.tokens={}",
        "models={}",
        "models.a.b={}",
        "backend_params={}",
        "{}",
    )
    found: list[Callable[[str], list[str]]] = [lambda _: ["--json"], lambda value: [value]]
    choices: list[list[str]] = [["store"], ["essay.txt"], [], ["store:0"], ["nothing"]]
    for action in parser._actions:
        if action.choices and not action.option_strings:
            choices = [[str(choice)] for choice in action.choices] + choices[2:]
        for flag in action.option_strings:
            if flag in ("-h", "--help", "--version"):
                continue
            if isinstance(action, argparse._StoreTrueAction):
                found.append(lambda _, flag=flag: [flag])  # type: ignore[misc]
                continue
            found.append(lambda value, flag=flag: [f"{flag}={value}"])  # type: ignore[misc]
            if flag == "--set":
                found += [
                    lambda value, setting=setting: ["--set", setting.format(value)]  # type: ignore[misc]
                    for setting in settings
                ]
    return found, choices


def _command(findings: Findings, folder: Path, argv: list[str]) -> None:
    # What no process can be given: a NUL, and half a character.
    argv = [re.sub("[\x00\ud800-\udc7f\udd00-\udfff]", "", word) for word in argv]
    tried(findings, folder, argv, f"lil {' '.join(map(word, argv))}")


def word(text: str) -> str:
    """A word of a command line as a finding shows it."""
    shown = repr(text) if not text.isprintable() or " " in text or not text else text
    return shown if len(shown) < 120 else f"{shown[:20]}...({len(text)} characters)"


# ---------------------------------------------------------------- problems


def problems() -> Kind:
    """Lines of JSON with the columns of a data set and any value, or no JSON."""
    columns = st.sampled_from(
        ("question", "problem", "prompt", "answer", "Answer", "id", "unique_id", "item_id", "x")
    )
    row = st.dictionaries(columns, anything(), max_size=4)
    pair = st.tuples(
        st.sampled_from(("question", "problem", "prompt")), scalars(), anything(), anything()
    ).map(lambda p: {p[0]: p[1], "answer": p[2], "id": p[3]})
    line = st.one_of(
        row.map(_line),
        pair.map(_line),
        st.sampled_from(("[" * 3000, '{"a":' * 3000, "{", "", "\ufeff{}", "null")),
        st.just('{"question":"a","answer":' + "9" * 5000 + "}"),
        st.text(max_size=20),
    )
    return st.lists(line, min_size=1, max_size=3).map("\n".join), _problems


def _line(row: Mapping[str, Any]) -> str:
    try:
        return json.dumps(row)
    except ValueError:  # an integer that Python does not write
        return "{}"


def _problems(findings: Findings, folder: Path, text: str) -> None:
    (folder / "x.jsonl").write_bytes(text.encode("utf-8", "surrogatepass"))
    argv = ["sweep", "--dataset", "x.jsonl", "--out", "out"]
    shown = text if len(text) < 150 else f"{text[:30]}...({len(text)} characters)"
    tried(findings, folder, argv, f"JSONL: {shown!r}")


# ---------------------------------------------------------------- stores


def damaged(store: Path) -> Kind:
    """Stores with one field of the manifest, of a record or of a trace gone or changed."""
    manifest, records = stores.smaller(*stores.read(store))
    kinds = st.one_of(
        st.tuples(st.just("manifest"), stores.changes(manifest)),
        st.tuples(st.just("record"), stores.changes(records[0][1])),
        st.tuples(st.just("trace"), stores.changes(records[0][2])),
        st.tuples(st.just("text"), st.tuples(st.integers(0, 4000), st.integers(0, 255))),
    )
    which = st.integers(0, len(records) - 1)
    command = st.sampled_from(("report", "report", "replay", "curve", "sweep", "chopper"))

    def attempt(findings: Findings, folder: Path, drawn: Any) -> None:
        (what, change), at, noun = drawn
        text, kept = json.dumps(manifest), list(records)
        if what == "text":
            place, byte = change
            raw = bytearray(text.encode())
            raw[place % len(raw)] = byte
            text, shown = bytes(raw), f"manifest byte {place % len(raw)} = {byte}"  # type: ignore[assignment]
        else:
            shown = f"{what}: {stores.told(change)}"
            if what == "manifest":
                text = json.dumps(stores.changed(manifest, *change))
            else:
                part = 1 if what == "record" else 2
                one = list(kept[at])
                try:
                    one[part] = stores.changed(one[part], *change)
                except (KeyError, IndexError, TypeError):
                    return  # this record has no such place
                kept[at] = tuple(one)  # type: ignore[call-overload]
        shutil.rmtree(folder / "store", ignore_errors=True)
        try:
            stores.write(folder / "store", text, kept)
        except ValueError:
            return  # an integer that Python does not write
        commands = {
            "report": ["report", "store", "--no-figures", "--json"],
            "replay": ["replay", "store", "--f", "100", "--json"],
            "curve": ["curve", f"store:{records[at][0].hex()}"],
            "sweep": ["sweep", "--out", "store", "--dataset", "easy"],
            "chopper": ["chopper", "train", "--from", "store"],
        }
        tried(findings, folder, commands[noun], f"lil {noun}, {shown}", may_write=True)

    return st.tuples(kinds, which, command), attempt
