"""The sweeps a store remembers, and which of them can be shown together."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from experiments.grid.config import check
from experiments.grid.identity import Configuration
from experiments.grid.plan import Plan, PlannedProblem, distinct
from experiments.grid.stored import StoredConfig
from experiments.store import manifest
from lil.detectors import DETECTORS

#: Keys on which sweeps that are shown together agree: other values make other samples or caps.
_SAME = (
    *("cap", "max_new_tokens", "temperature", "top_k", "top_p", "seed", "dtype"),
    *("weights", "samples_per_problem", "beyond_positions", "runtime"),
)


#: Keys of a configuration that sweeps had before.
_GONE = frozenset({"address", "device_map", "executor", "gpus_per_worker"})


@dataclass(frozen=True)
class Sweep:
    """One sweep of a store, as its manifest has it."""

    id: str
    values: Mapping[str, Any] = field(repr=False)
    config: StoredConfig
    plan: Plan = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> Sweep:
        """A sweep by its manifest."""
        values = manifest.load(path)
        plan = Plan.from_dict(values["plan"], f"plan in {path}")
        before = {k: v for k, v in values["config"].items() if k not in _GONE}
        config = check(before, str(path))
        config["detector_params"] = _as_then(config["detector_params"], values["detectors"])
        return cls(path.stem, values, StoredConfig(**config), plan)

    @property
    def status(self) -> str:
        """ "running", "finished", "interrupted" or "failed"; "running" as well if it was killed."""
        return str(self.values["status"])

    def summary(self) -> dict[str, Any]:
        """Id, start, status, runs and arguments, as lists of sweeps show them."""
        keys = ("started", "ended", "status", "preset", "arguments", "commit", "host")
        return {"id": self.id, "runs": len(self.plan), **{k: self.values.get(k) for k in keys}}


def _as_then(params: Mapping[str, Any], detectors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Parameters of detectors; those that came after the sweep have no effect on it."""
    tables = dict(params)
    for stored in itertools.chain(detectors, *(d.get("parts", ()) for d in detectors)):
        if (name := stored.get("name")) in DETECTORS.shipped():
            later = dataclasses.fields(DETECTORS.find(name))
            values = ((f.name, f.metadata["left_out"]) for f in later if "left_out" in f.metadata)
            absent = {key: value for key, value in values if key not in stored}
            tables[name] = {**absent, **tables.get(name, {})}
    return tables


@dataclass(frozen=True)
class SweepGroup:
    """Compatible sweeps, the newest first, and why others are incompatible, by their ids."""

    sweeps: tuple[Sweep, ...]
    incompatible: Mapping[str, str] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """All their configurations; problems as the newest has them, with its answers."""
        every = (c for sweep in self.sweeps for c in sweep.plan.configurations)
        items: dict[tuple[str, str], tuple[PlannedProblem, ...]] = {}
        for sweep in self.sweeps:
            for key, problems in sweep.plan.items.items():
                items.setdefault(key, problems)
        return Plan(tuple(distinct(every)), items, self.sweeps[0].plan.samples_per_problem)

    @property
    def config(self) -> StoredConfig:
        """The newest's, with the names of all the methods that the others used."""

        union: dict[str, Any] = {}
        for key in ("models", "datasets", "backends", "budgets", "penalties"):
            values = (value for sweep in self.sweeps for value in getattr(sweep.config, key))
            union[key] = tuple(dict.fromkeys(values))
        return dataclasses.replace(self.sweeps[0].config, **union)

    def warnings(self, folder: Path, writing: str | None) -> list[str]:
        """What a reader of their results should know, a sentence each."""
        sentences = []
        if self.incompatible:
            reasons = "; ".join(f"{id_}: {why}" for id_, why in self.incompatible.items())
            sentences.append(
                f"{folder}: sweeps that are incompatible with the last one are left out ({reasons})"
                f"; `lil report {folder} --sweep ID` shows them"
            )
        for sweep in self.unfinished():
            status = sweep.status
            if status == "running":
                status = "still running" if sweep.id == writing else "killed"
            started = sweep.values["started"]
            sentences.append(f"{folder}: sweep {sweep.id} of {started} is unfinished ({status})")
        return sentences

    def unfinished(self) -> list[Sweep]:
        """Sweeps that did not end by themselves, unless a newer one has all their runs."""
        unfinished: list[Sweep] = []
        done: list[Configuration] = []
        for sweep in self.sweeps:
            if sweep.status == "finished":
                done += sweep.plan.configurations
            elif any(c not in done for c in sweep.plan.configurations):
                unfinished.append(sweep)
        return unfinished


def read_all(folder: Path, notices: list[str]) -> list[Sweep]:
    """The sweeps of a store, the newest first; a damaged manifest is named and left out."""
    sweeps = []
    *older, last = manifest.paths(folder)
    for path in reversed(older):
        try:
            sweeps.append(Sweep.read(path))
        except InvalidValue as error:
            notices.append(f"{path} is left out: {error}")
    return [Sweep.read(last), *sweeps]


def by_id(folder: Path, id_: str) -> Sweep:
    """The sweep whose id begins with this text."""
    known = {path.stem: path for path in manifest.paths(folder)}
    ids = [stem for stem in known if stem == id_] or [s for s in known if s.startswith(id_)]
    if len(ids) != 1 or not id_:
        allowed = f"last, or the beginning of one of {', '.join(known)}"
        raise InvalidValue("sweep", id_, allowed, known)
    return Sweep.read(known[ids[0]])


def latest_compatible(sweeps: Sequence[Sweep]) -> SweepGroup:
    """The first sweep and all others that are compatible with it and each other."""
    group = list(sweeps[:1])
    incompatible: dict[str, str] = {}
    for sweep in sweeps[1:]:
        why = next(filter(None, (_why_incompatible(sweep, member) for member in group)), None)
        if why is None:
            group.append(sweep)
        else:
            incompatible[sweep.id] = why
    return SweepGroup(tuple(group), incompatible)


def groups(sweeps: Sequence[Sweep]) -> list[SweepGroup]:
    """All sweeps in as few compatible groups as there are."""
    all_groups = []
    left = list(sweeps)
    while left:
        group = latest_compatible(left)
        all_groups.append(SweepGroup(group.sweeps))
        left = [sweep for sweep in left if sweep.id in group.incompatible]
    return all_groups


def _why_incompatible(left: Sweep, right: Sweep) -> str | None:
    """Why two sweeps cannot be shown together; None where they can."""
    for key in _SAME:
        values = getattr(left.config, key), getattr(right.config, key)
        if values[0] != values[1]:
            return f"{key} {values[0]}, not {values[1]}"
    right_digests = {c.model: c.model_digest for c in right.plan.configurations}
    for c in left.plan.configurations:
        if right_digests.get(c.model, c.model_digest) != c.model_digest:
            return f"other weights under the name {c.model}"
    for (model, dataset), problems in left.plan.items.items():
        for (other_model, other_dataset), others in right.plan.items.items():
            prompts = model == other_model  # models put problems in prompts of their own
            if dataset == other_dataset and _problems(problems, prompts) != _problems(
                others, prompts
            ):
                return f"other problems in {dataset}"
    if _decoded_with(left) != _decoded_with(right):
        return "other detectors that act or read the model's states"
    return None


def _problems(problems: Sequence[PlannedProblem], prompts: bool) -> list[tuple[object, ...]]:
    """What makes them the same problems."""
    return [(p.item_id, p.gold, p.scorer, prompts and p.prompt) for p in problems]


def _decoded_with(sweep: Sweep) -> set[str]:
    """Detectors whose samples need more of a store than plain traces; others are only replayed."""
    return {
        json.dumps({key: value for key, value in d.items() if key != "signals"}, sort_keys=True)
        for d in sweep.values["detectors"]
        if d.get("on_stop", {}).get("name", "stop") != "stop" or d.get("signals")
    }
