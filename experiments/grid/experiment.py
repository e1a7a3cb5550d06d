"""An experiment: all that a checked configuration asks for, built once and carried."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attention.errors import InvalidValue
from experiments.grid import data, models, positions, scoring
from experiments.grid.config import Config
from experiments.grid.data.prompts import read_template, unknown_words
from experiments.grid.data.sets import SIZES, expand
from experiments.grid.detectors import build_detectors
from experiments.grid.identity import Configuration
from experiments.grid.plan import (
    Plan,
    PlannedProblem,
    build_backends,
    build_configurations,
    build_penalties,
)
from experiments.grid.scoring import Scorers
from lil.detectors import cue_ids
from lil.token_table import token_bytes

if TYPE_CHECKING:
    from attention import Backend
    from experiments.grid.plan import Penalties
    from lil import Detector


@dataclass(frozen=True)
class Experiment:
    """What a configuration asks for, as objects, built without a weight or a token."""

    config: Config
    backends: tuple[Backend, ...]
    penalties: tuple[Penalties, ...]
    detectors: tuple[Detector, ...]
    sources: Mapping[str, models.ModelSource]
    datasets: Mapping[str, data.DataSet]
    sizes: Mapping[str, int]  # problems of each data set
    scorers: Scorers  # that do not ship
    plan: Plan
    prompts: Mapping[tuple[str, str, str], Sequence[int]]  # by model, data set and problem
    warnings: tuple[str, ...]
    unknown: tuple[str, ...]  # what an estimate cannot know

    @classmethod
    def from_config(cls, config: Config, *, local_only: bool = False) -> Experiment:
        """Build everything, and refuse the first thing that cannot be used."""
        names = expand(config.datasets)  # before seconds of loading
        backends = tuple(build_backends(config))
        penalties = tuple(build_penalties(config))
        detectors = tuple(build_detectors(config))
        scoring.loaded(config.scorer)
        unknown: list[str] = []
        sources = _sources(config, local_only, unknown)
        datasets, sizes = _datasets(config, names, local_only, unknown)
        scorers = scoring.loaded(*{i.scorer for d in datasets.values() for i in d.items})
        warnings = [line for dataset in datasets.values() for line in dataset.notices]

        configurations: list[Configuration] = []
        prompts: dict[tuple[str, str, str], Sequence[int]] = {}
        items: dict[tuple[str, str], tuple[PlannedProblem, ...]] = {}
        for name, source in sources.items():
            tokenizer = _tokenizer(source, local_only)
            if tokenizer is None:
                continue
            table = token_bytes(tokenizer)
            for detector in detectors:
                detector.require_tokens(table)
                for cue in (detector.action.gives[0], *detector.cues):
                    cue_ids(cue, tokenizer, table)  # refuses words that the model lacks
            for penalty in itertools.chain(*penalties):
                penalty.with_tokens(table)
            most, lengths = positions.positions(source, here=local_only), []
            for dataset in datasets.values():
                problems, of_dataset = [], []
                for item in dataset.items:
                    ids = item.prompt_ids(tokenizer)
                    prompts[name, dataset.name, item.id] = ids
                    of_dataset.append(ids)
                    lengths.append(positions.Prompt(dataset.name, item.id, len(ids)))
                    problems.append(PlannedProblem.of(item, ids, most))
                items[name, dataset.name] = tuple(problems)
                warnings += unknown_words(tokenizer, of_dataset, f"{dataset.name} ({name})")
            positions.require_room(name, most, lengths, beyond=config.beyond_positions)
            configurations += build_configurations(
                config, name, source.digest, tuple(datasets), backends, penalties
            )
        plan = Plan(tuple(configurations), items, config.samples_per_problem)
        planned = sources, datasets, sizes, scorers, plan, prompts, tuple(warnings), tuple(unknown)
        return cls(config, backends, penalties, detectors, *planned)

    @cached_property
    def _built(self) -> list[tuple[Mapping[str, Any], Backend]]:
        return [(backend.identity(), backend) for backend in self.backends]

    def backend(self, configuration: Configuration) -> Backend:
        """The backend of one of the plan's configurations."""
        return next(b for identity, b in self._built if identity == configuration.backend)

    def penalties_of(self, configuration: Configuration) -> Penalties:
        """The penalties of one of the plan's configurations."""
        tables = list(configuration.penalties)
        return next(p for p in self.penalties if [penalty.identity() for penalty in p] == tables)

    def about_problems(self) -> dict[str, Any]:
        """Data sets, template and system prompt for a manifest: the texts, since files change."""
        file = self.config.prompt_template
        template = None if file is None else read_template(file)
        datasets = [dataset.about() for dataset in self.datasets.values()]
        prompt: dict[str, Any] = {"template": template, "system": self.config.system}
        if self.config.template_values:
            prompt["template_values"] = list(self.config.template_values)
        return {"datasets": datasets, "prompt": prompt}


def _sources(config: Config, local_only: bool, unknown: list[str]) -> dict[str, models.ModelSource]:
    sources = {}
    for name in config.models:
        try:
            sources[name] = models.find(
                name, config.revision, here=local_only, weights=config.weights
            )
        except InvalidValue:
            if not local_only or name == models.REASONER or models.is_folder(name):
                raise
            unknown.append(f"{name} is not here: the memory it takes is not known")
    return sources


def _datasets(
    config: Config, names: Sequence[str], local_only: bool, unknown: list[str]
) -> tuple[dict[str, data.DataSet], dict[str, int]]:
    choice = data.ProblemChoice.of(config)
    datasets, sizes = {}, {}
    for name in names:
        if local_only and name in SIZES:
            left = SIZES[name] - config.offset
            if left <= 0:
                allowed = f"below {SIZES[name]:,}, the problems of {name}"
                raise InvalidValue("offset", config.offset, allowed)
            sizes[name] = min(left, config.sample or config.limit or left)
            unknown.append(f"{name} is not fetched: {sizes[name]} problems, as published")
            continue
        dataset = data.load_set(name, config.split, config.limit, choice)
        dataset.require_judges()
        datasets[name], sizes[name] = dataset, len(dataset.items)
    return datasets, sizes


def _tokenizer(source: models.ModelSource, local_only: bool) -> Any:
    """The tokenizer; None for an estimate where the hub's cache holds a config.json alone."""
    try:
        return models.load_tokenizer(source, here=local_only)
    except InvalidValue:
        if not local_only or source.revision is None:
            raise
        return None
