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

#: Runs that a message names.
_NAMED = 6

#: Characters of an id that are enough to mean it: a shorter word is a problem's number.
_LEAST = 4


class _Named(NamedTuple):
    """A run and the words for it: the id of its problem, backend and budget first."""

    study: Study
    run: Run
    words: tuple[str, ...]

    def matches(self, word: str) -> bool:
        """Whether a word is among them; of a problem's id the last part is enough.

        `name(a=1,b=2)` stands for all of its parts.
        """
        if word in self.words or word == PurePosixPath(self.words[0]).name:
            return True
        name, bracket, inside = word.partition("(")
        return (
            inside.endswith(")") and {name, *split(inside[:-1])} <= {*self.words} and bool(bracket)
        )


def find(studies: Sequence[Study], words: Sequence[str]) -> tuple[Study, Run]:
    """The run that is meant.

    Args:
        studies: of a store, the newest first.
        words: the beginning of its id; or each of them a part of what it is: problem, backend,
            budget, data set, penalty or none, model, a parameter of the backend as `page=16` or in
            brackets behind its name, `sample N`.

    Raises:
        InvalidValue: no run is that, or several are.
    """
    text = " ".join(words)
    every = [named for study in studies for named in _named(study)]
    if not every:
        raise InvalidValue("run", text, "a run, of which this store has planned none")
    if not words:
        raise InvalidValue("run", text, f"one of {_some(every)}, by id or by what it is")
    known = {word for word in words if any(named.matches(word) for named in every)}
    if len(words) == 1 and len(words[0]) >= _LEAST and not known:
        # Two sweeps may have planned the same run: the newest counts.
        by_id = {named.run.id: named for named in reversed(every)}
        fitting = [named for id_, named in by_id.items() if id_.startswith(words[0].lower())]
        if len(fitting) == 1:
            return fitting[0].study, fitting[0].run
    for study in studies:  # the newest that has it
        of_study = [named for named in every if named.study is study]
        fitting = [named for named in of_study if all(map(named.matches, words))]
        if len(fitting) == 1:
            return study, fitting[0].run
        if fitting:
            allowed = f"what one run alone is; {len(fitting)} are: {_some(fitting)}"
            raise InvalidValue("run", text, allowed)
    wrong = next((word for word in words if word not in known), text)
    allowed = f"the beginning of an id, or what a run is, such as {_some(every)}"
    near = dict.fromkeys(part for named in every for part in named.words)
    raise InvalidValue("run", wrong, allowed, list(near))


def parameters(backend: Mapping[str, Any]) -> dict[str, Any]:
    """A backend's parameters but for its budget."""
    return {name: value for name, value in backend.items() if name not in ("name", "budget")}


def _named(study: Study) -> Iterator[_Named]:
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
            yield _Named(study, run, tuple(words))


def _some(runs: Sequence[_Named]) -> str:
    """The first of some runs by id, with what tells them from each other."""
    common = set.intersection(*({*named.words} for named in runs))
    shown = []
    for named in runs[:_NAMED]:
        special = [word for word in named.words[4:] if word not in common]
        shown.append(f"{named.run.id[:8]} ({' '.join([*named.words[:4], *special])})")
    more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
    return ", ".join(shown) + more
