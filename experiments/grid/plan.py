"""The grid spelled out: every decode run of a sweep, with the identity it has in the store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attention.errors import InvalidValue
from experiments.grid.config import Config
from experiments.grid.identity import Cell, run_id, sampling
from experiments.grid.models import REASONER

if TYPE_CHECKING:
    from attention import Backend
    from lil import Detector
    from lil.penalties import HistoryPenalty

    Penalties = tuple[HistoryPenalty[Any], ...]


#: Classifiers of word salad that ship with the project, by the model they were trained on.
SHIPPED_CHOPPERS = {REASONER: "experiments.reasoner:chopper.safetensors"}


@dataclass(frozen=True)
class Run:
    """One decode run: a problem under one configuration."""

    cell: Cell
    item_id: str
    prompt: str  # digest of its token ids
    sample_index: int

    @property
    def id(self) -> str:
        """The run's identity, its key in the store."""
        return run_id(self.cell, self.item_id, self.prompt, self.sample_index)


@dataclass(frozen=True)
class Plan:
    """Cells of the grid and the problems of each model and data set.

    It is kept in the manifest: from it and the store, results are rebuilt without model or data.
    `items` maps (model, data set) to pairs (item id, digest of its prompt).
    """

    cells: tuple[Cell, ...]
    items: Mapping[tuple[str, str], tuple[tuple[str, str], ...]]
    samples_per_problem: int

    def runs(self, cell: Cell) -> Iterator[Run]:
        """The runs of one cell."""
        for item_id, prompt in self.items[cell.model, cell.dataset]:
            for index in range(self.samples_per_problem):
                yield Run(cell, item_id, prompt, index)

    def full_cell(self, cell: Cell) -> Cell:
        """The full-attention cell this one is measured against."""
        for other in self.cells:
            if other.is_full and (other.model, other.dataset) == (cell.model, cell.dataset):
                return other
        raise InvalidValue("plan", cell.dataset, "full attention beside every other backend")

    def __len__(self) -> int:
        return sum(
            len(self.items[cell.model, cell.dataset]) * self.samples_per_problem
            for cell in self.cells
        )

    def to_dict(self) -> dict[str, Any]:
        """The plan ready for JSON."""
        return {
            "cells": [cell.to_dict() for cell in self.cells],
            "items": [
                {"model": model, "dataset": dataset, "problems": [list(p) for p in problems]}
                for (model, dataset), problems in self.items.items()
            ],
            "samples_per_problem": self.samples_per_problem,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """The plan as `to_dict` gave it."""
        items = {
            (entry["model"], entry["dataset"]): tuple((i, p) for i, p in entry["problems"])
            for entry in values["items"]
        }
        cells = tuple(Cell.from_dict(cell) for cell in values["cells"])
        return cls(cells, items, values["samples_per_problem"])


def build_backends(config: Config) -> list[Backend]:
    """Full attention first, then every backend with every budget.

    Raises:
        InvalidValue: an unknown backend or parameter, a budget a method cannot work with, or two
            methods of one name.
    """
    import attention

    known = attention.names()
    for name in (*config.backends, *config.backend_params):
        if name not in known and ":" not in name:
            raise InvalidValue("backend", name, f"one of {', '.join(known)}", known)
    backends: list[Backend] = [attention.get("full", **config.backend_params.get("full", {}))]
    for name in config.backends:
        if name == "full":
            continue
        params = config.backend_params.get(name, {})
        for budget in config.budgets:
            backend = attention.get(name, **{"budget": budget, **params})
            # A method may be asked for by name and by import path.
            if backend not in backends:
                backends.append(backend)
    kinds = {backend.name: type(backend) for backend in backends}
    for backend in backends:
        if type(backend) is not kinds[backend.name]:
            who = f"{type(backend).__module__}:{type(backend).__name__}"
            raise InvalidValue("name", backend.name, f"a name of its own for {who}")
    return backends


def build_detectors(config: Config) -> list[Detector]:
    """The detectors a sweep replays.

    Raises:
        InvalidValue: an unknown detector or parameter, or a value it refuses.
    """
    from lil import detectors
    from lil.actions import ACTIONS

    asked = [tuple(entry.partition(":")[::2]) for entry in config.detectors]
    for name in (*(name for name, _ in asked), *config.detector_params):
        if name not in detectors.names():
            allowed = f"one of {', '.join(detectors.names())}, or none"
            raise InvalidValue("detector", name, allowed, detectors.names())
    for name in config.action_params:
        if name not in ACTIONS:
            raise InvalidValue("action", name, f"one of {', '.join(ACTIONS)}", list(ACTIONS))
        if "name" in config.action_params[name]:
            given = config.action_params[name]["name"]
            raise InvalidValue("name", given, f"no name in action_params.{name}: it is one")
    found: list[Detector] = []
    for name, what in asked:
        params = detector_params(config, name)
        if what:
            params["on_stop"] = {"name": what, **config.action_params.get(what, {})}
        made = detectors.get(name, **params)
        # `guardian` and `guardian:stop` are one: twice it would be two samples of the same name.
        if made not in found:
            found.append(made)
    return found


def detector_params(config: Config, name: str) -> dict[str, Any]:
    """A detector's parameters in a sweep; the chopper finds the weights that ship with its model.

    Weights by the name of a model are those that ship with it, and the sweep's own model's are
    meant where none are given.
    """
    params = dict(config.detector_params.get(name, {}))
    if name == "chopper":
        model = params.get("weights", config.models[0])
        if model in SHIPPED_CHOPPERS:
            params["weights"] = SHIPPED_CHOPPERS[model]
    return params


def build_penalties(config: Config) -> list[Penalties]:
    """No penalty first, then each alone.

    Raises:
        InvalidValue: an unknown penalty or parameter, or a value it refuses.
    """
    from lil import penalties

    known = penalties.names()
    for name in (*config.penalties, *config.penalty_params):
        if name not in known and (name != "none" or name in config.penalty_params):
            allowed = f"one of {', '.join(known)}, or none"
            raise InvalidValue("penalty", name, allowed, (*known, "none"))
    return [
        (),
        *(
            (penalties.get(name, **config.penalty_params.get(name, {})),)
            for name in config.penalties
            if name != "none"
        ),
    ]


def describe_penalties(penalties: Penalties) -> tuple[dict[str, Any], ...]:
    """Each penalty's name and all its resolved parameters, as the identity holds them."""
    return tuple({"name": penalty.name, **penalty.params()} for penalty in penalties)


def describe_backend(backend: Backend) -> dict[str, Any]:
    """A backend's name and all its resolved parameters, as the identity holds them."""
    return {"name": backend.name, **backend.params()}


def backend_of(cell: Cell) -> Backend:
    """The backend that a cell names.

    Raises:
        InvalidValue: it is not installed here, or no longer takes these parameters.
    """
    import attention

    return attention.get(**cell.backend)


class Methods:
    """Backends and penalties, found by the cell that names them."""

    def __init__(self, backends: Sequence[Backend], penalties: Sequence[Penalties]) -> None:
        self._backends = {_key(describe_backend(b)): b for b in backends}
        self._penalties = {_key(describe_penalties(p)): p for p in penalties}

    def backend(self, cell: Cell) -> Backend:
        """The cell's backend."""
        return self._backends[_key(cell.backend)]

    def penalties(self, cell: Cell) -> Penalties:
        """The cell's penalties."""
        return self._penalties[_key(cell.penalties)]


def _key(described: object) -> str:
    return json.dumps(described, sort_keys=True)


def build_cells(
    config: Config,
    model: str,
    digest: str,
    datasets: Sequence[str],
    backends: Sequence[Backend],
    penalties: Sequence[Penalties] = ((),),
) -> tuple[Cell, ...]:
    """The cells of one model: all without penalty, full attention first, then with each."""
    drawn = sampling(config.temperature, config.top_k, config.top_p, config.seed)
    return tuple(
        Cell(
            model,
            digest,
            dataset,
            describe_backend(backend),
            describe_penalties(penalty),
            drawn,
            config.dtype,
        )
        for penalty in penalties
        for backend in backends
        for dataset in datasets
    )
