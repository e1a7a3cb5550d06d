"""Which stores and sweeps a command is about, and what may be imported that they name."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from attention.errors import InvalidValue
from attention.spec import IMPORT_PATH, Spec
from experiments.cli.console import notify
from experiments.cli.parser import Parser, comma_list
from experiments.report.names import short_names
from experiments.store.study import Study
from lil import Detector

DEFAULT_STORE = "lil-out/demo"


def add_store(parser: Parser, also: str = "") -> None:
    """Add the folder of a sweep, by default the demo's."""
    text = f"folder of a sweep ({DEFAULT_STORE}){also}"
    parser.add_argument("store", nargs="?", default=DEFAULT_STORE, help=text)


def add_load_flag(parser: Parser | argparse._ArgumentGroup) -> None:
    """Add which classes may be imported that a store names."""
    text = "import these where the store names them, such as a method of yours or a codec"
    parser.add_argument("--load", metavar="module:Class,...", help=text)


def add_set_flag(parser: Parser | argparse._ArgumentGroup, text: str) -> None:
    """Add values of parameters of detectors."""
    metavar = "NAME.PARAMETER=VALUE,..."
    parser.add_argument("--set", action="append", default=[], metavar=metavar, help=text)


def add_scorer_flag(parser: Parser) -> None:
    """Add the user's own scorer that judges a store's problems."""
    text = "import the scorer of yours that the store names, or ask reasoning-gym's generators"
    parser.add_argument("--scorer", metavar="MODULE:FUNCTION|gym", help=text)


def to_load(text: str | None, typed: Iterable[Spec] = ()) -> frozenset[str]:
    """The import paths that the user typed: those of --load and of the detectors he names."""
    load = comma_list(text or "")
    for path in load:
        if not IMPORT_PATH.fullmatch(path):
            raise InvalidValue("load", path, "import paths module:Class, separated by commas")
    return frozenset([*load, *(path for spec in typed for path in spec.paths)])


def open_store(folder: Path, load: Collection[str] = (), scorer: str | None = None) -> Study:
    """A store as its sweeps left it; its warnings are printed on stderr."""
    study = Study.open(folder, load=load).judged_by(scorer)
    notify(study.warnings)
    return study


def judged_studies(studies: Sequence[Study], scorer: str | None) -> list[Study]:
    """The same, with the user's scorer where a store names it."""
    some = [scorer is not None and study.needs_any(scorer) for study in studies]
    # Where no store names it, the first says which there are.
    both = zip(studies, some, strict=True)
    return [s.judged_by(scorer) if needs or not any(some) else s for s, needs in both]


def open_stores(
    folders: Sequence[Path],
    sweep: str | None,
    load: Collection[str] = (),
    scorer: str | None = None,
) -> list[tuple[str, Study]]:
    """The studies of a command line, each under a label; their warnings are printed on stderr."""
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InvalidValue("store", ", ".join(map(str, folders)), "each store once")
    if len(folders) > 1 and sweep not in (None, "last"):
        raise InvalidValue("sweep", sweep, "last where there are several stores")
    every = [Study.open(folder, sweep, load) for folder in folders]
    studies = judged_studies(every, scorer)
    notify(notice for study in studies for notice in study.warnings)
    labels = short_names(names := [str(folder.absolute()) for folder in folders])
    return [(labels[name], study) for name, study in zip(names, studies, strict=True)]


def require_notes(detector: Detector, study: Study) -> None:
    """Refuse a detector of hidden states, which are not stored, where its notes are missing."""
    if lacking := study.without_notes(detector):
        usable = sum(study.usable(run) is not None for run in study.runs())
        allowed = (
            f"runs decoded with it at work: {lacking} of {usable} in {study.folder} lack its "
            f"notes of hidden states; the sweep's own command with --detector {detector.name} "
            "added decodes them again"
        )
        raise InvalidValue("detector", detector.name, allowed)
