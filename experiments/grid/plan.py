"""The grid spelled out: every decode run of a sweep, with the identity it has in the store."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from attention.errors import InvalidValue
from attention.registry import parameters
from attention.spec import Spec
from experiments.grid import schema
from experiments.grid.config import Config
from experiments.grid.identity import Configuration, prompt_digest, run_id, sampling
from experiments.grid.scoring import Gold

if TYPE_CHECKING:
    from attention import Backend
    from experiments.grid.data import Item
    from lil.penalties import Penalty

    Penalties = tuple[Penalty, ...]

T = TypeVar("T")


class PlannedProblem(NamedTuple):
    """A problem as a plan has it; `room`: tokens that the model's positions leave to a text."""

    item_id: str
    prompt: str  # digest of its token ids
    gold: Gold = None
    scorer: str = "none"
    room: schema.Natural | None = None

    @classmethod
    def of(cls, item: Item, prompt_ids: Sequence[int], positions: int | None) -> PlannedProblem:
        """A problem of a data set, put to a model."""
        room = None if positions is None else max(0, positions - len(prompt_ids))
        return cls(item.id, prompt_digest(prompt_ids), item.gold, item.scorer, room)


@dataclass(frozen=True)
class Run:
    """One decode run: a problem under one configuration."""

    configuration: Configuration
    problem: PlannedProblem
    sample_index: int

    @property
    def item_id(self) -> str:
        """The problem's."""
        return self.problem.item_id

    @cached_property
    def id(self) -> str:
        """The run's identity, its key in the store."""
        return run_id(self.configuration, self.item_id, self.problem.prompt, self.sample_index)


@dataclass(frozen=True)
class Plan:
    """Configurations, and in `items` the problems by model and data set."""

    configurations: tuple[Configuration, ...]
    items: Mapping[tuple[str, str], tuple[PlannedProblem, ...]]
    samples_per_problem: int

    def runs(self, configuration: Configuration) -> tuple[Run, ...]:
        """The runs of one configuration."""
        return self._runs[self.configurations.index(configuration)]

    def full(self, run: Run) -> Run:
        """The full-attention run this one is measured against: itself, if it is one."""
        key = (run.configuration.model, run.configuration.dataset, run.item_id, run.sample_index)
        return self._full[key]

    def fulls(self, run: Run) -> tuple[Run, ...]:
        """The full-attention runs of its problem: one for each sample."""
        return tuple(
            self._full[run.configuration.model, run.configuration.dataset, run.item_id, index]
            for index in range(self.samples_per_problem)
        )

    @cached_property
    def _runs(self) -> tuple[tuple[Run, ...], ...]:
        # Made once: each run computes its identity at its first use.
        return tuple(
            tuple(
                Run(configuration, problem, index)
                for problem in self.items[configuration.model, configuration.dataset]
                for index in range(self.samples_per_problem)
            )
            for configuration in self.configurations
        )

    @cached_property
    def _full(self) -> dict[tuple[str, str, str, int], Run]:
        return {
            (c.model, c.dataset, run.item_id, run.sample_index): run
            for c, runs in zip(self.configurations, self._runs, strict=True)
            for run in runs
            if c.is_full
        }

    def __len__(self) -> int:
        problems = sum(len(self.items[c.model, c.dataset]) for c in self.configurations)
        return problems * self.samples_per_problem

    def to_dict(self) -> dict[str, Any]:
        """The plan ready for JSON."""
        return {
            "cells": [configuration.to_dict() for configuration in self.configurations],
            "items": [
                {"model": model, "dataset": dataset, "problems": [list(p) for p in problems]}
                for (model, dataset), problems in self.items.items()
            ],
            "samples_per_problem": self.samples_per_problem,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], what: str = "plan") -> Plan:
        """The plan as `to_dict` gave it."""
        fields = schema.checked(values, _Fields, what)
        items = {(entry.model, entry.dataset): entry.problems for entry in fields.items}
        if len(items) < len(fields.items):
            raise InvalidValue(what, "items", "each data set of a model once")
        for (_, dataset), problems in items.items():
            if len({problem.item_id for problem in problems}) < len(problems):
                raise InvalidValue(f"problems of {what}", dataset, "no problem twice")
        configurations, full = fields.configurations, set()
        for at, configuration in enumerate(configurations):
            where, dataset = f"configuration {at} of {what}", configuration.dataset
            if (configuration.model, dataset) not in items:
                allowed = "a data set whose problems are there"
                raise InvalidValue(where, dataset, allowed, [key[1] for key in items])
            if configuration in configurations[:at]:
                raise InvalidValue(where, configuration.name, "no configuration twice")
            if configuration.is_full:
                full.add((configuration.model, dataset))
        for model, dataset in items:
            if (model, dataset) not in full:
                raise InvalidValue(what, dataset, "full attention for every other backend")
        return cls(configurations, items, fields.samples_per_problem)


class _Items(msgspec.Struct, forbid_unknown_fields=True):
    """The problems of one model and data set, as a plan is written down."""

    model: str
    dataset: str
    problems: tuple[PlannedProblem, ...]


class _Fields(msgspec.Struct, forbid_unknown_fields=True):
    """A plan as it is written down."""

    configurations: tuple[Configuration, ...] = msgspec.field(name="cells")
    items: tuple[_Items, ...]
    samples_per_problem: schema.Count


def build_backends(config: Config) -> list[Backend]:
    """Full attention first, then every backend with every budget, once where it takes none."""
    from attention.methods import METHODS

    tables = config.backend_params
    with config.following():
        for name in tables:
            METHODS.find(name)
        backends = [METHODS.get("full", **tables.get("full", {}))]
        for spec in map(METHODS.spec, [*config.backends, *_noise(config)]):
            budgets = [{"budget": b} for b in config.budgets] if takes_budget(spec) else [{}]
            own = tables.get(spec.name, {}), spec.params
            merged = (METHODS.merge(spec.name, budget, *own) for budget in budgets)
            backends += [METHODS.get(spec.name, **params) for params in merged]
        require_own_names(backends)
        # A name and an import path may mean the same method.
        return distinct(backends)


def takes_budget(spec: Spec) -> bool:
    """Whether a backend has a budget at all."""
    from attention.methods import METHODS

    return any(p.name == "budget" for p in parameters(METHODS.find(spec.name)))


def lacks_budget(config: Config, spec: Spec) -> bool:
    """Whether a backend has a budget that neither it nor the configuration's tables give."""
    from attention.methods import METHODS

    tables = config.backend_params.get(spec.name, {}), spec.params
    params = METHODS.merge(spec.name, {"budget": None}, *tables)
    return takes_budget(spec) and params.get("budget", 0) is None


#: Relative errors of rounding: the size of the noise that parts texts there.
_ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "int8": 2.0**-8}


def _noise(config: Config) -> list[str]:
    """The null of greedy decoding; where numbers are rounded, with noise of the rounding's size."""
    if null_of(config) != "noise":
        return []
    noise = _ROUNDING.get(config.number_format)
    own = "noise" in config.backend_params.get("noise", {})
    return ["noise" if noise is None or own else f"noise(noise={noise})"]


def null_of(config: Config) -> str:
    """How full attention is compared with itself: "seed", "noise" or "none"."""
    if config.null != "auto":
        return config.null
    if config.temperature:
        return "seed"
    return "noise" if config.number_format in _ROUNDING else "none"


def build_penalties(config: Config) -> list[Penalties]:
    """No penalty first, then each alone."""
    from lil.penalties import PENALTIES

    tables = config.penalty_params
    with config.following():
        for name in tables:
            PENALTIES.find(name)
        specs = [spec for spec in map(PENALTIES.spec, config.penalties) if spec != Spec("none")]
        merged = [PENALTIES.merge(s.name, tables.get(s.name, {}), s.params) for s in specs]
        penalties = distinct(
            PENALTIES.get(spec.name, **params) for spec, params in zip(specs, merged, strict=True)
        )
        require_own_names(penalties)
        return [(), *((penalty,) for penalty in penalties)]


def distinct(objects: Iterable[T]) -> list[T]:
    """Each object once, in order; equality decides, for tables have no hash."""
    first: list[T] = []
    for item in objects:
        if item not in first:
            first.append(item)
    return first


def require_own_names(objects: Sequence[Any]) -> None:
    """Refuse two classes of one name, which stored results would mix up."""
    kinds = {item.name: type(item) for item in objects}
    for item in objects:
        if type(item) is not kinds[item.name]:
            who = f"{type(item).__module__}:{type(item).__name__}"
            raise InvalidValue("name", item.name, f"a name of its own for {who}")


def build_configurations(
    config: Config,
    model: str,
    digest: str,
    datasets: Sequence[str],
    backends: Sequence[Backend],
    penalties: Sequence[Penalties] = ((),),
) -> tuple[Configuration, ...]:
    """One model's configurations: without penalty, full attention first, then with each."""
    drawn = sampling(config.temperature, config.top_k, config.top_p, config.seed)
    configurations = []
    for of_run, backend, dataset in itertools.product(penalties, backends, datasets):
        tables = tuple(penalty.identity() for penalty in of_run)
        method = backend.identity(), tables, drawn, config.dtype, backend.role, config.runtime
        configurations.append(Configuration(model, digest, dataset, *method))
    if null_of(config) == "seed":
        redrawn = {**drawn, "seed": (config.seed + 1) % 2**63}
        full = [configuration for configuration in configurations if configuration.is_full]
        configurations += [replace(c, sampling=redrawn, role="null") for c in full]
    return tuple(configurations)
