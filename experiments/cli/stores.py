"""Which stores and which of their sweeps a command is about."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.markup import escape

from attention.errors import InvalidValue
from attention.spelling import IMPORT_PATH
from experiments.cli.console import Console
from experiments.cli.parser import Parser
from experiments.cli.show import say
from experiments.grid.stored import paths_in, paths_set
from experiments.store.files.disk import is_locked
from experiments.store.labels import folder_labels
from experiments.store.study import Study
from experiments.store.sweeps import read_all


@dataclass(frozen=True)
class Opened:
    """One study, what it is called beside the others, and where its figures go by default."""

    label: str
    study: Study
    figures: Path


def add_sweep_flags(parser: Parser) -> None:
    """Which sweeps of a store are shown."""
    group = parser.add_argument_group(
        "sweeps of a store (default: the last one and all that fit together with it: the same "
        "weights, problems, caps, sampling, seed and dtype)"
    )
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--sweep",
        metavar="ID|last|all",
        help="one sweep alone, by the beginning of its id; or all, those that fit side by side",
    )
    which.add_argument("--sweeps", action="store_true", help="list them instead of results")


def add_load_flag(parser: Parser | argparse._ArgumentGroup) -> None:
    """Which classes may be imported that a store names."""
    parser.add_argument(
        "--load",
        metavar="module:Class,...",
        help="import these where the store names them, such as a method of yours or a codec",
    )


def to_load(
    args: argparse.Namespace, detectors: Iterable[str] = (), settings: Iterable[str] = ()
) -> frozenset[str]:
    """The import paths that were typed.

    Args:
        args: parsed flags, --load among them.
        detectors, settings: as they were typed.

    Raises:
        InvalidValue: --load has something else.
    """
    given = [path.strip() for path in (args.load or "").split(",") if path.strip()]
    for path in given:
        if not IMPORT_PATH.fullmatch(path):
            raise InvalidValue("load", path, "import paths module:Class, separated by commas")
    return frozenset([*given, *paths_in(detectors), *paths_set(settings)])


def add_scorer_flag(parser: Parser) -> None:
    """A scorer of one's own that a store's problems are judged by."""
    parser.add_argument(
        "--scorer",
        metavar="MODULE:FUNCTION",
        help="import the scorer of yours that the store names; nothing it names is run by itself",
    )


def opened(
    folders: Sequence[Path],
    sweep: str | None,
    notes: Console,
    detectors: Sequence[str] = (),
    load: Collection[str] = (),
    scorer: str | None = None,
) -> list[Opened]:
    """The studies a command line asks for; what a reader should know of them is said on `notes`.

    Args:
        folders, sweep: which.
        notes: where it is said.
        detectors: shown beside those of the stores, as they were typed.
        load: import paths that were typed.

    Raises:
        InvalidValue: no store there, no such sweep, a store given twice, or a scorer that none of
            them names.
    """
    _require_apart(folders)
    if len(folders) > 1 and sweep not in (None, "last", "all"):
        raise InvalidValue("sweep", sweep, "last or all where there are several stores")
    found = []
    for folder, label in zip(folders, folder_labels(folders), strict=True):
        every = sweep == "all"
        studies = Study.each(folder, load) if every else [Study.open(folder, sweep, load)]
        for study in (one.beside(detectors) for one in studies):
            one = len(studies) == 1
            newest = study.sweeps[0].id
            figures = folder / "figures" if one else folder / "figures" / newest
            found.append(Opened(label if one else f"{label}@{newest}", study, figures))
    if scorer is not None:
        asked = [one for one in found if scorer in one.study.needs()] or found[:1]
        judged = {one.label: one.study.judged_by(scorer) for one in asked}
        found = [replace(one, study=judged.get(one.label, one.study)) for one in found]
    say([notice for one in found for notice in one.study.said], notes)
    return found


def listing(folders: Sequence[Path], console: Console, notes: Console) -> dict[str, Any]:
    """Print the sweeps of stores, the newest first; the same as a document.

    Raises:
        InvalidValue: no store there, or a store given twice.
    """
    _require_apart(folders)
    several = len(folders) > 1
    document = []
    notices: list[str] = []
    for folder, label in zip(folders, folder_labels(folders), strict=True):
        if several:
            console.rule(escape(label), align="left")
        sweeps = read_all(folder, notices)
        at_work = max((one.id for one in sweeps), default="") if is_locked(folder) else None
        for sweep in sweeps:
            told = sweep.told()
            if told["status"] == "running" and sweep.id != at_work:
                told["status"] = "killed"
            document.append(({"store": label} if several else {}) | told)
            started = told["started"][:16].replace("T", " ")
            line = f"{told['id']:24}  {told['status']:11}  {started}  {told['runs']:,} runs"
            command = " ".join(["    lil", *map(shlex.quote, told["arguments"])])
            for text in (line, command):
                console.print(text, markup=False, highlight=False, soft_wrap=True)
    say(notices, notes)
    return {"sweeps": document}


def _require_apart(folders: Sequence[Path]) -> None:
    seen: list[Path] = []
    for folder in folders:
        if folder.resolve() in seen:
            raise InvalidValue("store", str(folder), "each store once")
        seen.append(folder.resolve())
