"""One run of a store, by the beginning of its id or by what it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from attention.errors import InvalidValue
from experiments.grid.data.sets import labels
from experiments.grid.plan import Run
from experiments.store.labels import penalty_labels
from experiments.store.study import Study

#: Runs that a message names.
_NAMED = 6

#: Characters of an id that are enough to mean one: a shorter word is a problem's number.
_LEAST = 4


def find(studies: Sequence[Study], words: Sequence[str]) -> tuple[Study, Run]:
    """The run that is meant.

    Args:
        studies: of a store, the newest first.
        words: the beginning of its id; or each of them a part of what it is: problem, backend,
            budget, data set, penalty, model, `sample N`.

    Raises:
        InvalidValue: no run is that, or several are.
    """
    asked = " ".join(words)
    every = [(study, run, told) for study in studies for run, told in _told(study)]
    if not every:
        raise InvalidValue("run", asked, "a run, of which this store has planned none")
    if not words:
        raise InvalidValue("run", asked, f"one of {_some(every)}, by id or by what it is")
    named_so = any(_is(word, told) for word in words for *_, told in every)
    if len(words) == 1 and len(words[0]) >= _LEAST and not named_so:
        # Two sweeps may have planned one run.
        by_id = {run.id: (study, run) for study, run, _ in reversed(every)}
        fit = [one for id_, one in by_id.items() if id_.startswith(words[0].lower())]
        if len(fit) == 1:
            return fit[0]
    for study in studies:  # the newest that has it
        named = [(study, run, told) for run, told in _told(study)]
        mine = [one for one in named if all(_is(word, one[2]) for word in words)]
        if len(mine) == 1:
            return mine[0][0], mine[0][1]
        if mine:
            allowed = f"what one run alone is; {len(mine)} are: {_some(mine)}"
            raise InvalidValue("run", asked, allowed)
    known = [part for _, _, told in every for part in told]
    wrong = next((word for word in words if not any(_is(word, told) for *_, told in every)), asked)
    allowed = f"the beginning of an id, or what a run is, such as {_some(every)}"
    raise InvalidValue("run", wrong, allowed, list(dict.fromkeys(known)))


def _told(study: Study) -> Iterator[tuple[Run, tuple[str, ...]]]:
    """Each run with the words for it: the id of its problem, backend and budget first."""
    called = labels([cell.dataset for cell in study.plan.cells])
    for cell, penalty in zip(study.plan.cells, penalty_labels(study.plan), strict=True):
        budget = [] if cell.budget is None else [str(cell.budget)]
        rest = [called[cell.dataset], cell.model]
        rest += [] if penalty == "none" else [penalty]
        for run in study.plan.runs(cell):
            parts = [run.item_id, str(cell.backend["name"]), *budget, *rest]
            if study.plan.samples_per_problem > 1:
                parts.append(f"sample {run.sample_index}")
            yield run, tuple(parts)


def _is(word: str, told: Sequence[str]) -> bool:
    """Whether a word stands for a part; of a problem's id the last part is enough."""
    return word in told or word == PurePosixPath(told[0]).name


def _some(runs: Sequence[tuple[Study, Run, tuple[str, ...]]]) -> str:
    shown = [f"{run.id[:8]} ({' '.join(told[:4])})" for _, run, told in runs[:_NAMED]]
    return ", ".join(shown) + (f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else "")


def studies_of(folder: Path, scorer: str | None) -> list[Study]:
    """Every sweep of a store, those that fit together as one, judged by a scorer if one is named.

    Raises:
        InvalidValue: no store there, or a scorer that it does not name.
    """
    studies = Study.each(folder)
    if scorer is None:
        return studies
    needing = [study for study in studies if scorer in study.needs()]
    if not needing:
        studies[0].judged_by(scorer)  # which says what there is
    return [study.judged_by(scorer) if study in needing else study for study in studies]
