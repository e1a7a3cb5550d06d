"""Texts of a study's stores, read and priced at every cap."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from text_readings import TextReading, read_text
from trace_readings import asked_by

from attention.errors import InvalidValue
from experiments.store.samples.sample import Sample, is_usable
from experiments.store.study import Study
from experiments.sweep.footprints import footprint
from lil import Trace

CAPS = (2, 4, 8)
#: Operations a byte of memory is worth: a B200's 4.5e15 per second in 16 bits over 8e12 bytes.
INTENSITY = 562.5
COSTS = ("keys", "bytes", "byte_steps", "seconds", "eflops", "tokens")
METHODS = ("quest", "infllm", "h2o", "sink")
Row = dict[str, Any]


@dataclass(frozen=True)
class Prices:
    """What a model's numbers cost, in bytes and operations.

    Args:
        parameters: each is multiplied and added once a token.
        key_bytes: of one key and its value in one KV head.
        key_flops: of one key read in one KV head, by all its query heads.
    """

    parameters: int
    key_bytes: float
    key_flops: float

    @classmethod
    def of(cls, study: Study, shape: str | None = None) -> Prices:
        """Those of a study's model, or of one of the same shape.

        Raises:
            InvalidValue: it is not here.
        """
        from experiments.grid import models

        name, revision = study.config.models[0], study.config.revision
        source = models.find(name if shape is None else shape, revision, here=True)
        size = footprint(source.location, source.revision, study.config.dtype)
        config = json.loads((Path(source.location) / "config.json").read_text())
        heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
        head = config.get("head_dim") or config["hidden_size"] // heads
        return cls(size.parameters, size.kv_bytes_per_token / groups, 4 * head * heads / groups)

    def costs(self, trace: Trace, kept: int) -> dict[str, float]:
        """What a trace's first tokens cost; seconds nan where they are not known."""
        if not kept:
            return dict.fromkeys(COSTS, 0.0) | {"seconds": trace.prefill_sec}
        cost = trace.cost_at(kept)
        moved = cost.keys_read * self.key_bytes
        flops = 2 * self.parameters * kept + self.key_flops * cost.keys_read
        seconds = math.nan if cost.seconds is None else trace.prefill_sec + cost.seconds
        return {
            "keys": cost.keys_read,
            "bytes": moved,
            "byte_steps": byte_steps(trace, kept),
            "seconds": seconds,
            "eflops": flops + INTENSITY * moved,
            "tokens": float(kept),
        }


def byte_steps(trace: Trace, kept: int) -> float:
    """Bytes held times steps they are held, a straight line between two checks."""
    points = [one for one in trace.checks if one.tokens < kept] + [trace.cost_at(kept)]
    points.insert(0, trace.cost_at(0))
    return math.fsum((b.tokens - a.tokens) * (a.cache_bytes + b.cache_bytes) / 2
                     for a, b in pairwise(points))  # fmt: skip


@dataclass(frozen=True)
class Text:
    """A trace, read and priced at every cap, and what decoded it."""

    sample: Sample
    at: Mapping[int, TextReading]
    costs: Mapping[int, Mapping[str, float]]
    processor: str = "unknown"

    @property
    def top(self) -> TextReading:
        """Under the largest cap."""
        return self.at[max(self.at)]

    def untimed(self) -> Text:
        """The same without its seconds."""
        costs = {cap: {**cost, "seconds": math.nan} for cap, cost in self.costs.items()}
        return replace(self, costs=costs)


Cell = tuple[str, int | None, bool]
Pair = tuple[Text, Text]


def cell_of(sample: Sample) -> Cell:
    """Method, budget and whether the prompt is kept."""
    return sample.backend, sample.budget, bool(dict(sample.backend_params).get("keep_prompt"))


def is_method(cell: Cell) -> bool:
    """Whether it is one of the cells of the methods."""
    return cell[0] in METHODS and not cell[2]


def caps_of(studies: Sequence[Study]) -> tuple[int, ...]:
    """The caps at which all these stores can be read: none above their own.

    Raises:
        InvalidValue: a store without a cap in times of full attention's length.
    """
    for study in studies:
        if (study.config.cap_factor or 0) < min(CAPS):
            allowed = f"one of at least {min(CAPS)}x-full, in each store"
            raise InvalidValue("cap", study.config.cap, allowed)
    least = min(study.config.cap_factor or 0 for study in studies)
    return tuple(cap for cap in CAPS if cap <= least)


def texts(
    studies: Sequence[Study], shape: str | None = None
) -> tuple[dict[str, dict[Cell, dict[str, Text]]], int]:
    """All traces by level, cell and problem, and how many runs are not there.

    Args:
        studies: of the stores.
        shape: a model whose numbers cost the same, where theirs is not here.

    Raises:
        InvalidValue: traces of other problems, or no store with full attention.
    """
    found: dict[str, dict[Cell, dict[str, Text]]] = defaultdict(lambda: defaultdict(dict))
    missing, caps = 0, caps_of(studies)
    processors = {sweep.id: str(sweep.values.get("device_name"))
                  for study in studies for sweep in study.sweeps}  # fmt: skip
    for study in studies:
        prices = Prices.of(study, shape)
        plain = study.samples([]).samples
        ordered = sorted(plain, key=lambda one: one.backend != "full")
        for sample in ordered:
            if sample.penalty != "none":
                continue
            cells = found[sample.dataset]
            cell = cell_of(sample)
            if sample.item_id in cells[cell]:
                continue
            if not is_usable(sample):
                missing += 1
                continue
            record = study.store.get(sample.record or "")
            assert record is not None
            trace = record.trace()
            drawn = asked_by(sample.item_id, trace.prompt_bytes)
            full = cells[("full", None, False)].get(sample.item_id)
            ended = trace.finish == "eos"
            at, costs = {}, {}
            for cap in caps:
                most = None if full is None else cap * full.top.tokens
                kept = trace.tokens if most is None else min(most, trace.tokens)
                same = next((one for one in at.values() if one.tokens == kept), None)
                at[cap] = same or read_text(drawn, trace.pieces, ended=ended, cap=most)
                costs[cap] = prices.costs(trace, kept)
            where = processors.get(str(record.meta["sweep"]), "unknown")
            found[sample.dataset][cell][sample.item_id] = Text(sample, at, costs, where)
    if any(("full", None, False) not in cells for cells in found.values()) or not found:
        raise InvalidValue("store", str([str(s.folder) for s in studies]), "full attention in it")
    return {level: timed(cells) for level, cells in found.items()}, missing


def timed(cells: Mapping[Cell, Mapping[str, Text]]) -> dict[Cell, dict[str, Text]]:
    """A level's texts; seconds of another processor than most of full attention's are not known."""
    names = Counter(one.processor for one in cells["full", None, False].values())
    most = max(sorted(names), key=lambda name: names[name])
    return {
        cell: {item: one if one.processor == most else one.untimed() for item, one in some.items()}
        for cell, some in cells.items()
    }


def paired(mine: Mapping[str, Text], theirs: Mapping[str, Text]) -> list[Pair]:
    """Texts of the same problems, those left out whose partner was cut at its own cap."""
    return [
        (mine[item], theirs[item])
        for item in sorted(mine.keys() & theirs.keys())
        if theirs[item].sample.status != "capped" or theirs[item].sample.backend != "full"
    ]
