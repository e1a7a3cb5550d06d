"""What a sweep would take: runs, tokens, memory, time. Nothing is fetched, decoded or written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attention.errors import InvalidValue
from attention.families import key_windows
from experiments.grid import models
from experiments.grid.config import Config
from experiments.grid.data.sets import labels
from experiments.grid.experiment import Experiment
from experiments.grid.identity import Configuration
from experiments.grid.plan import Run, build_configurations
from experiments.grid.sources import code
from experiments.store import manifest
from experiments.store.store import Store
from experiments.store.study import Study

if TYPE_CHECKING:
    import torch

    from attention import Backend

N = TypeVar("N", int, float)


def estimate(config: Config, out: Path) -> dict[str, Any]:
    """The document of `lil sweep --dry-run --json`; bytes, tokens, seconds, missing is None."""
    unknown: list[str] = []
    if config.runtime == "vllm":
        from experiments.sweep.executors import on_vllm  # imports torch

        on_vllm.require_decodable(config)
        unknown.append(on_vllm.MEMORY)
        if not on_vllm.is_installed():
            unknown.append(on_vllm.NOT_HERE)
    if config.batch_size == "auto":
        unknown.append("rows decoded together are not known: they fill the memory that is free")
    experiment = Experiment.from_config(config, local_only=True)
    unknown += experiment.unknown
    if config.runtime == "vllm":
        on_vllm.require_compared(experiment)
    study = Study.of(Store(out), experiment) if manifest.any_in(out) else None
    speeds = {} if study is None else study.store.seconds_per_token()
    forecasts: list[dict[str, Any]] = []
    memory: list[dict[str, Any]] = []
    for name in config.models:
        source = experiment.sources.get(name)
        digest, of_model = source.digest if source else "", []
        for configuration in build_configurations(
            config, name, digest, [*experiment.sizes], experiment.backends, experiment.penalties
        ):
            speed = speeds.get((name, configuration.backend["name"]))
            of_model.append(_forecast(experiment, configuration, study, speed, unknown))
        memory += _memory(experiment, name, _footprint_or_none(source, config.dtype, unknown))
        if untimed := dict.fromkeys(f["backend"] for f in of_model if f["seconds"] is None):
            unknown.append(
                f"time of {name} under {', '.join(untimed)} is not known: nothing of it is stored; "
                "the same command with --limit 8 into the same folder measures it"
            )
        forecasts += of_model
    sums = ("runs", "stored", "tokens_expected", "runs_of_unknown_length", "tokens_at_most")
    return {
        **{key: total(f[key] for f in forecasts) for key in (*sums, "seconds")},
        "batch_size": config.rows,
        "dtype": config.dtype,
        "config": config.to_dict(),
        "labels": labels([f["dataset"] for f in forecasts]),
        "cells": forecasts,
        "memory": memory,
        "unknown": list(dict.fromkeys(unknown)),
        "notices": list(experiment.warnings),
    }


def _forecast(
    experiment: Experiment,
    configuration: Configuration,
    study: Study | None,
    seconds_per_token: float | None,
    unknown: list[str],
) -> dict[str, Any]:
    """What one configuration would take; None where the store lacks what it follows from."""
    config = experiment.config
    runs = experiment.sizes[configuration.dataset] * config.samples_per_problem
    shortest = longest = config.max_new_tokens
    if not configuration.is_full:
        longest = config.sparse_cap(config.max_new_tokens)
    stored = 0 if study is None else None
    expected, most, of_unknown_length = runs * shortest, runs * longest, runs
    if (configuration.model, configuration.dataset) in experiment.plan.items:
        left = list(experiment.plan.runs(configuration))
        if study is not None:
            own = code(study.backend(configuration), *study.penalties(configuration))
            left = [run for run in left if _is_missing(study, run, own)]
            stored = runs - len(left)
            if any(study.usable(run) for run in left):
                name = configuration.name
                unknown.append(f"some runs of {name} are of other code: --again decodes them anew")
        expected = most = of_unknown_length = 0
        for run in left:
            length = None if study is None else study.full_tokens(run)
            if study is None or length is None:
                room = None if config.beyond_positions else run.problem.room
                fits = longest if room is None else room
                expected, most = expected + min(shortest, fits), most + min(longest, fits)
                of_unknown_length += 1
            else:
                expected, most = expected + length, most + study.cap(run)
    elif study is not None:
        unknown.append(f"what is stored of {configuration.dataset} is not known")
    unmeasured = seconds_per_token is None and expected
    return {
        "model": configuration.model,
        "dataset": configuration.dataset,
        "backend": configuration.backend["name"],
        "budget": configuration.budget,
        "penalty": "+".join(str(table["name"]) for table in configuration.penalties) or "none",
        "runs": runs,
        "stored": stored,
        "tokens_expected": expected,
        "runs_of_unknown_length": of_unknown_length,
        "tokens_at_most": most,
        "tokens_per_sec": None if seconds_per_token is None else 1 / seconds_per_token,
        "seconds": None if unmeasured else expected * (seconds_per_token or 0.0),
    }


def _is_missing(study: Study, run: Run, own: Mapping[str, str]) -> bool:
    record = study.store.get(run.id)
    return record is None or not record.covers_cap(study.cap(run)) or not record.made_by(own)


def total(values: Iterable[N | None]) -> N | None:
    """The sum; None where one of them is not known."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


@dataclass(frozen=True)
class Footprint:
    """Bytes of a model's weights, and what its layers hold that hold keys and values."""

    weight_bytes: int
    windows: tuple[int | None, ...]  # of layers that hold keys; None: they see everything
    sizes: tuple[int, int, int]  # query heads, KV heads, numbers of a head
    dtype: torch.dtype

    def kv_bytes(self, backend: Backend, tokens: int) -> int:
        """Bytes of keys and values of a row of so many tokens, without scores and free slots.

        Raises:
            InvalidValue: the method does not fit the model.
        """
        import torch

        from attention.contract import Geometry

        Hq, Hkv, D = self.sizes
        if backend.keeps_all:
            return len(self.windows) * tokens * 2 * Hkv * D * self.dtype.itemsize
        backend.check_heads(*([x] * len(self.windows) for x in (Hkv, Hq // Hkv)))
        how: dict[str, Any] = {"dtype": self.dtype, "device": torch.device("cpu"), "rope": None}
        how["windows"], total = self.windows, 0
        for index, window in enumerate(self.windows):
            place = Geometry(backend.name, index, 1, *self.sizes, model_window=window, **how)
            for name, slots in backend.build(place).state.items():
                if name.split()[-1] in ("k", "v"):
                    kept = tokens if slots.limit is None else min(tokens, slots.limit)
                    total += slots.data.shape[1] * kept * slots.width
        return total


def footprint(source: models.ModelSource, dtype: str) -> Footprint:
    """Read from a config.json that is here; nothing is fetched and no weight is read."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(
            source.location, revision=source.revision, local_files_only=True
        )
        with torch.device("meta"):  # shapes without numbers
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        text = config.get_text_config()
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        windows = key_windows(text)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        allowed = f"a config.json that is here ({reason})"
        raise InvalidValue("model", source.location, allowed) from error
    kind = getattr(torch, dtype)
    weights = sum(parameter.numel() for parameter in model.parameters()) * kind.itemsize
    return Footprint(weights, windows, (text.num_attention_heads, heads, size), kind)


def _footprint_or_none(
    source: models.ModelSource | None, dtype: str, unknown: list[str]
) -> Footprint | None:
    try:
        return None if source is None else footprint(source, dtype)
    except InvalidValue as error:
        assert source is not None
        unknown.append(f"memory of {source.name} is not known: {error.allowed}")
        return None


def _memory(experiment: Experiment, model: str, size: Footprint | None) -> Iterator[dict[str, Any]]:
    """Bytes of weights, and of keys and values of a row and a batch, by backend and budget."""
    config = experiment.config
    prompts = {key[1:]: len(ids) for key, ids in experiment.prompts.items() if key[0] == model}
    longest = max(prompts.values(), default=0)
    ends = [
        prompts[dataset, problem.item_id] + problem.room
        for (name, dataset), problems in experiment.plan.items.items()
        for problem in problems
        if name == model and problem.room is not None and not config.beyond_positions
    ]
    for backend in experiment.backends:
        most = config.max_new_tokens
        if backend.name != "full":
            most = config.sparse_cap(config.max_new_tokens)
        tokens = min(longest + most, max(ends, default=longest + most))
        row = None if size is None else size.kv_bytes(backend, tokens)
        yield {
            "model": model,
            "backend": backend.name,
            "budget": backend.params().get("budget"),
            "weight_bytes": None if size is None else size.weight_bytes,
            "row_tokens": tokens,
            "prompt_tokens_max": longest or None,
            "kv_bytes_per_row": row,
            "kv_bytes_per_batch": None if row is None else row * config.rows,
        }
