"""Which stores and sweeps a command is about, and what may be imported that they name."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.markup import escape

from attention.errors import InvalidValue
from attention.spec import IMPORT_PATH
from experiments.cli.console import Console, notify
from experiments.cli.parser import Parser, comma_list
from experiments.grid.config import check
from experiments.grid.stored import paths_in, paths_set
from experiments.store.files.filesystem import is_locked
from experiments.store.labels import folder_labels
from experiments.store.study import Study
from experiments.store.sweeps import read_all
from lil import Detector

DEFAULT_STORE = "lil-out/demo"


@dataclass(frozen=True)
class OpenedStudy:
    """A study, its label among several, and the default folder of its figures."""

    label: str
    study: Study
    figures: Path


def add_store(parser: Parser, also: str = "") -> None:
    """Add the folder of a sweep, by default the demo's."""
    words = f"folder of a sweep ({DEFAULT_STORE}){also}"
    parser.add_argument("store", nargs="?", default=DEFAULT_STORE, help=words)


def add_sweep_flags(parser: Parser) -> None:
    """Add which sweeps of a store are shown."""
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
    """Add which classes may be imported that a store names."""
    parser.add_argument(
        "--load",
        metavar="module:Class,...",
        help="import these where the store names them, such as a method of yours or a codec",
    )


def add_scorer_flag(parser: Parser) -> None:
    """Add the user's own scorer that judges a store's problems."""
    parser.add_argument(
        "--scorer",
        metavar="MODULE:FUNCTION|gym",
        help="import the scorer of yours that the store names, or ask reasoning-gym of its "
        "generators' problems; nothing a store names is run by itself",
    )


def to_load(
    args: argparse.Namespace, detectors: Iterable[str] = (), settings: Iterable[str] = ()
) -> frozenset[str]:
    """The import paths that were typed: of --load, of detectors and of values to try.

    Raises:
        InvalidValue: --load has something else.
    """
    typed = comma_list(args.load or "")
    for path in typed:
        if not IMPORT_PATH.fullmatch(path):
            raise InvalidValue("load", path, "import paths module:Class, separated by commas")
    return frozenset([*typed, *paths_in(detectors), *paths_set(settings)])


def typed_detectors(text: str | None) -> tuple[str, ...]:
    """The detectors of a flag --detector, each as it was typed; a calibrated file is read."""
    detectors: tuple[str, ...]
    detectors = check({"detectors": text or "none"}, "--detector")["detectors"]
    return detectors


def open_store(folder: Path, load: Collection[str] = (), scorer: str | None = None) -> Study:
    """A store as its sweeps left it; its warnings are printed on stderr.

    Args:
        folder: of the store.
        load: import paths that were typed.
        scorer: the user's own.

    Raises:
        InvalidValue: no store there, or a scorer that it does not name.
    """
    study = Study.open(folder, load=load).judged_by(scorer)
    notify(study.warnings)
    return study


def open_stores(
    folders: Sequence[Path],
    sweep: str | None,
    detectors: Sequence[str] = (),
    load: Collection[str] = (),
    scorer: str | None = None,
) -> list[OpenedStudy]:
    """The studies a command line asks for; their warnings are printed on stderr.

    Args:
        folders, sweep: which.
        detectors: shown with those of the stores, as they were typed.
        load: import paths that were typed.
        scorer: the user's own.

    Raises:
        InvalidValue: no store there, no such sweep, a store given twice, or a scorer that none of
            them names.
    """
    _require_distinct(folders)
    if len(folders) > 1 and sweep not in (None, "last", "all"):
        raise InvalidValue("sweep", sweep, "last or all where there are several stores")
    studies = []
    for folder, label in zip(folders, folder_labels(folders), strict=True):
        every = Study.each(folder, load) if sweep == "all" else [Study.open(folder, sweep, load)]
        for study in every:
            name, figures = label, folder / "figures"
            if len(every) > 1:
                newest = study.sweeps[0].id
                name, figures = f"{label}@{newest}", figures / newest
            studies.append(OpenedStudy(name, study.with_detectors(detectors), figures))
    if scorer is not None:
        # Where none of them names it, the first says which there are.
        needing = [x.label for x in studies if x.study.needs_any(scorer)] or [studies[0].label]
        studies = [
            replace(x, study=x.study.judged_by(scorer)) if x.label in needing else x
            for x in studies
        ]
    notify(notice for opened in studies for notice in opened.study.warnings)
    return studies


def list_sweeps(folders: Sequence[Path], console: Console) -> dict[str, Any]:
    """Print the sweeps of stores, the newest first; returns the document.

    Raises:
        InvalidValue: no store there, or a store given twice.
    """
    _require_distinct(folders)
    several = len(folders) > 1
    document = []
    notices: list[str] = []
    for folder, label in zip(folders, folder_labels(folders), strict=True):
        if several:
            console.rule(escape(label), align="left")
        sweeps = read_all(folder, notices)
        writing = max((sweep.id for sweep in sweeps), default="") if is_locked(folder) else None
        for sweep in sweeps:
            row = sweep.summary()
            if row["status"] == "running" and sweep.id != writing:
                row["status"] = "killed"
            document.append(({"store": label} if several else {}) | row)
            started = row["started"][:16].replace("T", " ")
            console.line(f"{row['id']:24}  {row['status']:11}  {started}  {row['runs']:,} runs")
            console.line(" ".join(["    lil", *map(shlex.quote, row["arguments"])]))
    notify(notices)
    return {"sweeps": document}


def _require_distinct(folders: Sequence[Path]) -> None:
    for at, folder in enumerate(folders):
        if folder.resolve() in [other.resolve() for other in folders[:at]]:
            raise InvalidValue("store", str(folder), "each store once")


def require_notes(detector: Detector, study: Study) -> None:
    """Refuse a detector of hidden states, which are not stored, where its notes are missing.

    Raises:
        InvalidValue: runs of the study lack these notes.
    """
    if lacking := study.without_notes(detector):
        usable = sum(study.usable(run) is not None for run in study.runs())
        allowed = (
            f"runs decoded with it at work: {lacking} of {usable} in {study.folder} lack its "
            f"notes of hidden states; the sweep's own command with --detector {detector.name} "
            "added decodes them again"
        )
        raise InvalidValue("detector", detector.name, allowed)
