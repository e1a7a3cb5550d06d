"""Which stored run is meant: by its id, or by what it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from attention.errors import InvalidValue
from attention.spec import split
from experiments.grid.data.sets import labels as dataset_labels
from experiments.grid.plan import Run
from experiments.store.labels import penalty_labels
from experiments.store.study import Study

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


def parameters(backend: Mapping[str, Any]) -> dict[str, Any]:
    """A backend's parameters but for its budget."""
    return {name: value for name, value in backend.items() if name not in ("name", "budget")}


def _named_runs(study: Study) -> Iterator[_NamedRun]:
    every = study.plan.configurations
    datasets = dataset_labels([configuration.dataset for configuration in every])
    for configuration, penalty in zip(every, penalty_labels(study.plan), strict=True):
        backend = configuration.backend
        budget = [] if configuration.budget is None else [str(configuration.budget)]
        rest = [datasets[configuration.dataset], configuration.model, penalty]
        rest += [f"{name}={value}" for name, value in parameters(backend).items()]
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
