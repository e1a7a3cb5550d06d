"""Which stores, sweeps and runs a command is about, and what may be imported that they name."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from attention.errors import InvalidValue
from attention.spec import IMPORT_PATH, Spec, split
from experiments.cli.console import notify
from experiments.cli.parser import Parser, comma_list
from experiments.grid.data.sets import labels as dataset_labels
from experiments.grid.detectors import penalty_labels
from experiments.grid.plan import Run
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


_LISTED = 6  # runs that a message names
_LEAST_OF_ID = 4  # a shorter word is a problem's number


class _NamedRun(NamedTuple):
    """A run and the words for it: the id of its problem, backend and budget first."""

    study: Study
    run: Run
    words: tuple[str, ...]

    def matches(self, word: str) -> bool:
        """Whether a word is among them; `name(a=1,b=2)` means all of its parts."""
        name, bracket, inside = word.partition("(")
        parts = {name, *split(inside[:-1])} if bracket and inside.endswith(")") else {word}
        # Of a problem's id the last part is enough.
        return parts <= {*self.words, PurePosixPath(self.words[0]).name}


def find(studies: Sequence[Study], words: Sequence[str]) -> tuple[Study, Run]:
    """The run that is meant: by the beginning of its id, or by words for what it is.

    Such words are its problem, backend, budget, data set, penalty or none, model, a parameter of
    the backend as `page=16` or in brackets behind its name, `sample N`. The newest study is first.
    """
    text = " ".join(words)
    every = [named for study in studies for named in _named_runs(study)]
    if not every:
        raise InvalidValue("run", text, "a run, of which this store has planned none")
    if not words:
        raise InvalidValue("run", text, f"one of {_listed(every)}, by id or by what it is")
    known = [word for word in words if any(named.matches(word) for named in every)]
    if len(words) == 1 and not known and len(text) >= _LEAST_OF_ID:
        # The newest sweep that has a run says how it counts.
        by_id = {named.run.id: named for named in reversed(every)}
        matching = [named for id_, named in by_id.items() if id_.startswith(text.lower())]
        if len(matching) == 1:
            return matching[0].study, matching[0].run
    for study in studies:
        own = (named for named in every if named.study is study)
        matching = [named for named in own if all(map(named.matches, words))]
        if len(matching) == 1:
            return study, matching[0].run
        if matching:
            allowed = f"what one run alone is; {len(matching)} are: {_listed(matching)}"
            raise InvalidValue("run", text, allowed)
    wrong = next((word for word in words if word not in known), text)
    allowed = f"the beginning of an id, or what a run is, such as {_listed(every)}"
    near = dict.fromkeys(part for named in every for part in named.words)
    raise InvalidValue("run", wrong, allowed, list(near))


def _named_runs(study: Study) -> Iterator[_NamedRun]:
    every = study.plan.configurations
    datasets = dataset_labels([configuration.dataset for configuration in every])
    for configuration, penalty in zip(every, penalty_labels(study.plan), strict=True):
        backend = configuration.backend
        budget = [] if configuration.budget is None else [str(configuration.budget)]
        rest = [datasets[configuration.dataset], configuration.model, penalty]
        rest += [f"{name}={value}" for name, value in configuration.parameters.items()]
        for run in study.plan.runs(configuration):
            words = [run.item_id, str(backend["name"]), *budget, *rest]
            if study.plan.samples_per_problem > 1:
                words.append(f"sample {run.sample_index}")
            yield _NamedRun(study, run, tuple(words))


def _listed(runs: Sequence[_NamedRun]) -> str:
    """The first of some runs by id, with what tells them from each other."""
    common = set.intersection(*({*named.words} for named in runs))
    listed = []
    for named in runs[:_LISTED]:
        special = [word for word in named.words[4:] if word not in common]
        listed.append(f"{named.run.id[:8]} ({' '.join([*named.words[:4], *special])})")
    more = f" and {len(runs) - _LISTED} more" if len(runs) > _LISTED else ""
    return ", ".join(listed) + more
