"""What a sweep would do: runs, tokens, memory, time. Nothing is loaded, fetched or written.

What is here is looked at: the store, files of problems, a model's folder or what the hub's cache
holds of it. What is not here is not known, and is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from attention.errors import InvalidValue
from attention.identity import code
from experiments.grid import data, models, positions, scoring
from experiments.grid.config import Config
from experiments.grid.data.sets import SIZES, expand, labels
from experiments.grid.detectors import build_detectors
from experiments.grid.identity import Configuration
from experiments.grid.plan import (
    Plan,
    PlannedProblem,
    Run,
    build_backends,
    build_configurations,
    build_penalties,
)
from experiments.grid.stored import backend_of
from experiments.store import manifest
from experiments.store.study import Study
from experiments.sweep.footprints import Footprint, footprint

N = TypeVar("N", int, float)

#: Keys that say which problems are asked and how; of the same, an earlier plan has the prompts.
_ASKS = (
    "split",
    "limit",
    "offset",
    "sample",
    "seed",
    "columns",
    "scorer",
    "prompt_template",
    "system",
)


class ConfigurationForecast(TypedDict):
    """One configuration: its runs, what is stored of them, the tokens and seconds left.

    `stored` is None where that is not known, `seconds` and `tokens_per_sec` where nothing was
    measured. Runs of unknown length are those whose full attention is not stored.
    """

    model: str
    dataset: str
    backend: str
    budget: int | None
    penalty: str
    runs: int
    stored: int | None
    tokens_expected: int
    runs_of_unknown_length: int
    tokens_at_most: int
    tokens_per_sec: float | None
    seconds: float | None


class MemoryForecast(TypedDict):
    """Bytes of a model's weights, and of keys and values of a row and of a batch."""

    model: str
    backend: str
    budget: int | None
    weight_bytes: int | None
    row_tokens: int
    prompt_tokens_max: int | None
    kv_bytes_per_row: int | None
    kv_bytes_per_batch: int | None


@dataclass
class _Known:
    """What was found out on the way, and sentences about what was not."""

    config: Config
    stored: Study | None
    unknown: list[str] = field(default_factory=list)
    prompts: dict[tuple[str, str], list[int]] = field(default_factory=dict)  # lengths, tokens
    problems: dict[tuple[str, str], tuple[PlannedProblem, ...]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)  # of data sets

    def miss(self, sentence: str) -> None:
        """Say once what is not known."""
        if sentence not in self.unknown:
            self.unknown.append(sentence)

    def rooms(self, configuration: Configuration, total: int) -> list[int | None]:
        """Tokens that the model's positions leave each run of a cell, of `total`; None: unknown."""
        problems = self.problems.get((configuration.model, configuration.dataset))
        if problems is None or self.config.beyond_positions:
            return [None] * total
        return [one.room for one in problems for _ in range(self.config.samples_per_problem)]


def dry_run(config: Config, out: Path) -> dict[str, Any]:
    """The document of `lil sweep --dry-run --json`; bytes, tokens, seconds, missing is None.

    Args:
        config: of the sweep.
        out: folder of its store, which need not be there.

    Raises:
        InvalidValue: a name, a budget or a file that the sweep would refuse.
    """
    if config.runtime == "vllm":
        from experiments.sweep.executors import vllm_limits  # torch comes with it

        vllm_limits.require_able(config)
    backends, penalties = build_backends(config), build_penalties(config)
    build_detectors(config)
    scoring.loaded(config.scorer)
    known = _Known(config, Study.open(out) if manifest.any_in(out) else None)
    if config.runtime == "vllm":
        known.miss(vllm_limits.MEMORY)
        if not vllm_limits.is_installed():
            known.miss(vllm_limits.NOT_HERE)
    sets = _sets(known)
    configurations: list[ConfigurationForecast] = []
    memory: list[MemoryForecast] = []
    speeds = {} if known.stored is None else known.stored.store.seconds_per_token()
    for name in config.models:
        source = _source(known, name)
        planned = _planned(known, name, source, sets)
        size = _size(known, name, source)
        digest = source.digest if source else _digest(known, name)
        of_model = build_configurations(
            config, name, digest or "", tuple(sets), backends, penalties
        )
        here = tuple(
            configuration
            for configuration in of_model
            if digest and (name, configuration.dataset) in planned
        )
        study = None
        if known.stored is not None and here:
            plan = Plan(here, planned, config.samples_per_problem)
            study = Study(known.stored.store, plan, config)
        for configuration in of_model:
            speed = speeds.get((name, configuration.backend["name"]))
            configurations.append(
                _cell(
                    known,
                    configuration,
                    sets[configuration.dataset],
                    study if configuration in here else None,
                    speed,
                )
            )
        memory += _memory(known, name, size, of_model)
    return _document(known, configurations, memory)


# ---------------------------------------------------------------- what is here


def _sets(known: _Known) -> dict[str, data.DataSet | int]:
    """Each data set's problems; of one that would be fetched, how many there are."""
    config = known.config
    choice = data.ProblemChoice.of(config)
    found: dict[str, data.DataSet | int] = {}
    for name in expand(config.datasets):
        if name in SIZES:
            left = SIZES[name] - config.offset
            if left <= 0:
                allowed = f"below {SIZES[name]:,}, the problems of {name}"
                raise InvalidValue("offset", config.offset, allowed)
            asked = [n for n in (config.sample or config.limit, left) if n is not None]
            found[name] = min(asked)
            known.miss(f"{name} is not fetched: {found[name]} problems, as published")
            scoring.require(choice.scorer_of_mathematics(), name)
        else:
            found[name] = one = data.load_set(name, config.split, config.limit, choice)
            known.said += one.said
            one.require_judges()
    return found


def _source(known: _Known, name: str) -> models.ModelSource | None:
    try:
        return models.find(name, known.config.revision, here=True, weights=known.config.weights)
    except InvalidValue:
        if name == models.REASONER or models.is_folder(name):
            raise
        known.miss(f"{name} is not here: the memory it takes is not known")
        return None


def _digest(known: _Known, name: str) -> str | None:
    """Which weights an earlier sweep into this store had under this name."""
    configurations = known.stored.plan.configurations if known.stored else ()
    return next(
        (
            configuration.model_digest
            for configuration in configurations
            if configuration.model == name
        ),
        None,
    )


def _planned(
    known: _Known,
    model: str,
    source: models.ModelSource | None,
    sets: Mapping[str, data.DataSet | int],
) -> dict[tuple[str, str], tuple[PlannedProblem, ...]]:
    """Problems with their prompts' digests, where tokenizer and texts are here or were before."""
    found: dict[tuple[str, str], tuple[PlannedProblem, ...]] = {}
    tokenizer = _tokenizer(source)
    most = None if source is None else positions.positions(source, here=True)
    lengths = []
    earlier = _earlier(known)
    for name, one in sets.items():
        if isinstance(one, data.DataSet) and tokenizer is not None:
            prompts = [(item, item.prompt_ids(tokenizer)) for item in one.items]
            known.prompts[model, name] = [len(ids) for _, ids in prompts]
            found[model, name] = tuple(PlannedProblem.of(*both, most) for both in prompts)
            lengths += [positions.Prompt(name, item.id, len(ids)) for item, ids in prompts]
        elif (model, name) in earlier:
            found[model, name] = earlier[model, name]
    positions.require_room(model, most, lengths, beyond=known.config.beyond_positions)
    known.problems |= found
    return found


def _tokenizer(source: models.ModelSource | None) -> Any:
    if source is None:
        return None
    try:
        return models.load_tokenizer(source, here=True)
    except InvalidValue:
        if source.revision is None:
            raise
        return None  # of a hub model whose config.json alone is in the cache


def _earlier(known: _Known) -> Mapping[tuple[str, str], tuple[PlannedProblem, ...]]:
    """Problems of the store's own plan, if it asked for the same ones in the same way."""
    stored = known.stored
    if stored is None:
        return {}
    same = all(getattr(stored.config, key) == getattr(known.config, key) for key in _ASKS)
    return stored.plan.items if same else {}


def _size(known: _Known, name: str, source: models.ModelSource | None) -> Footprint | None:
    if source is None:
        return None
    try:
        return footprint(source.location, source.revision, known.config.dtype)
    except InvalidValue as error:
        known.miss(f"memory of {name} is not known: {error.allowed}")
        return None


# ---------------------------------------------------------------- runs and tokens


def _cell(
    known: _Known,
    configuration: Configuration,
    one: data.DataSet | int,
    study: Study | None,
    per_token: float | None,
) -> ConfigurationForecast:
    """What one configuration would take.

    Args:
        one: its data set, or how many problems that has.
        study: what is stored of it; None where that is not known.
        per_token: seconds a token takes; None where none was measured.
    """
    config = known.config
    problems = len(one.items) if isinstance(one, data.DataSet) else one
    total = problems * config.samples_per_problem
    stored = 0 if known.stored is None else None
    longest = config.max_new_tokens if configuration.is_full else _most(config)
    lengths: list[int | None] = [None] * total
    rooms = known.rooms(configuration, total)
    most = [_cut(longest, room) for room in rooms]
    if study is not None:
        made_by = code(study.backend(configuration), *study.penalties(configuration))
        left = [run for run in study.plan.runs(configuration) if _pending(study, run, made_by)]
        if any(study.usable(run) for run in left):
            known.miss(
                f"some runs of {configuration.name} are of other code: --again decodes them anew"
            )
        rooms = [None if config.beyond_positions else run.problem.room for run in left]
        stored = total - len(left)
        lengths = [study.full_tokens(run) for run in left]
        most = [
            study.cap(run) if length is not None else _cut(longest, room)
            for run, length, room in zip(left, lengths, rooms, strict=True)
        ]
    elif known.stored is not None:
        known.miss(
            f"what is stored of {configuration.dataset} under {configuration.model} is not known"
        )
    expected = sum(
        _cut(config.max_new_tokens, room) if length is None else length
        for length, room in zip(lengths, rooms, strict=True)
    )
    return {
        "model": configuration.model,
        "dataset": configuration.dataset,
        "backend": configuration.backend["name"],
        "budget": configuration.budget,
        "penalty": "+".join(str(table["name"]) for table in configuration.penalties) or "none",
        "runs": total,
        "stored": stored,
        "tokens_expected": expected,
        "runs_of_unknown_length": lengths.count(None),
        "tokens_at_most": sum(most),
        "tokens_per_sec": None if per_token is None else 1 / per_token,
        "seconds": None if per_token is None and expected else expected * (per_token or 0.0),
    }


def _pending(study: Study, run: Run, made_by: Mapping[str, str]) -> bool:
    record = study.store.get(run.id)
    return record is None or not record.covers_cap(study.cap(run)) or not record.made_by(made_by)


def _cut(tokens: int, room: int | None) -> int:
    """As many as the model's positions leave."""
    return tokens if room is None else min(tokens, room)


def _most(config: Config) -> int:
    """The most tokens a sparse run may have when nothing is known of full attention's."""
    return config.sparse_cap(config.max_new_tokens)


# ---------------------------------------------------------------- memory


def _memory(
    known: _Known, name: str, size: Footprint | None, configurations: Sequence[Configuration]
) -> list[MemoryForecast]:
    """Weights, and keys and values of a row and of a batch, of every backend and budget."""
    config = known.config
    prompts = [n for (model, _), of in known.prompts.items() if model == name for n in of]
    found: dict[tuple[str, int | None], MemoryForecast] = {}
    for configuration in configurations:
        backend = str(configuration.backend["name"])
        if (backend, configuration.budget) in found:
            continue  # the same under another penalty
        asked = config.max_new_tokens if configuration.is_full else _most(config)
        tokens = max(prompts, default=0) + asked
        ends = [
            prompt + room
            for (model, dataset), of in known.prompts.items()
            for prompt, one in zip(of, known.problems[model, dataset], strict=True)
            if model == name and (room := one.room) is not None
        ]
        if ends and not config.beyond_positions:
            tokens = min(tokens, max(ends))
        row = None if size is None else size.kv_bytes(backend_of(config, configuration), tokens)
        found[backend, configuration.budget] = {
            "model": name,
            "backend": backend,
            "budget": configuration.budget,
            "weight_bytes": None if size is None else size.weight_bytes,
            "row_tokens": tokens,
            "prompt_tokens_max": max(prompts, default=None),
            "kv_bytes_per_row": row,
            "kv_bytes_per_batch": None if row is None else row * config.batch_size,
        }
    return list(found.values())


# ---------------------------------------------------------------- all of it


def _document(
    known: _Known, configurations: list[ConfigurationForecast], memory: list[MemoryForecast]
) -> dict[str, Any]:
    unmeasured: dict[str, list[str]] = {}
    for configuration in configurations:
        if configuration["seconds"] is None and configuration["backend"] not in unmeasured.get(
            configuration["model"], []
        ):
            unmeasured.setdefault(configuration["model"], []).append(configuration["backend"])
    for model, backends in unmeasured.items():
        known.miss(
            f"time of {model} under {', '.join(backends)} is not known: nothing of it is stored; "
            "the same command with --limit 8 into the same folder measures it"
        )
    return {
        "runs": sum(configuration["runs"] for configuration in configurations),
        "stored": total(configuration["stored"] for configuration in configurations),
        "tokens_expected": sum(
            configuration["tokens_expected"] for configuration in configurations
        ),
        "runs_of_unknown_length": sum(
            configuration["runs_of_unknown_length"] for configuration in configurations
        ),
        "tokens_at_most": sum(configuration["tokens_at_most"] for configuration in configurations),
        "seconds": total(configuration["seconds"] for configuration in configurations),
        "batch_size": known.config.batch_size,
        "dtype": known.config.dtype,
        "config": known.config.to_dict(),
        "labels": labels([configuration["dataset"] for configuration in configurations]),
        "cells": configurations,
        "memory": memory,
        "unknown": known.unknown,
        "notices": known.said,
    }


def total(values: Iterable[N | None]) -> N | None:
    """The sum; None where one of them is not known."""
    found: N = 0
    for value in values:
        if value is None:
            return None
        found += value
    return found
