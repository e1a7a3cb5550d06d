"""The sweeps a store remembers, and which of them can be shown together."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from experiments.grid.config import check
from experiments.grid.identity import Configuration
from experiments.grid.plan import Plan, PlannedProblem
from experiments.grid.stored import StoredConfig
from experiments.store import manifest

#: Keys on which sweeps that are shown together agree: other values make other samples or caps.
_SAME = (
    *("cap", "max_new_tokens", "temperature", "top_k", "top_p", "seed", "dtype"),
    *("weights", "samples_per_problem", "beyond_positions", "runtime"),
)


@dataclass(frozen=True)
class Sweep:
    """One sweep of a store, as its manifest has it."""

    id: str
    values: Mapping[str, Any] = field(repr=False)
    config: StoredConfig
    plan: Plan = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> Sweep:
        """A sweep by its manifest.

        Raises:
            InvalidValue: it cannot be read, or is no manifest.
        """
        values = manifest.load(path)
        plan = Plan.from_dict(values["plan"], f"plan in {path}")
        return cls(path.stem, values, StoredConfig(**check(values["config"], str(path))), plan)

    @property
    def status(self) -> str:
        """ "running", "finished", "interrupted" or "failed"; "running" as well if it was killed."""
        return str(self.values["status"])

    def summary(self) -> dict[str, Any]:
        """Id, start, status, runs and arguments, as lists of sweeps show them."""
        return {
            "id": self.id,
            "started": self.values["started"],
            "ended": self.values["ended"],
            "status": self.status,
            "runs": len(self.plan),
            "preset": self.values["preset"],
            "arguments": list(self.values["arguments"]),
            "commit": self.values.get("commit"),
            "host": self.values.get("host"),
        }


@dataclass(frozen=True)
class SweepGroup:
    """Sweeps that fit together, the newest first, and why others do not fit them."""

    sweeps: tuple[Sweep, ...]
    apart: Mapping[str, str] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """All their cells; problems as the newest has them, with its answers."""
        configurations: list[Configuration] = []
        items: dict[tuple[str, str], tuple[PlannedProblem, ...]] = {}
        for sweep in self.sweeps:
            configurations += [
                configuration
                for configuration in sweep.plan.configurations
                if configuration not in configurations
            ]
            for key, problems in sweep.plan.items.items():
                items.setdefault(key, problems)
        return Plan(tuple(configurations), items, self.sweeps[0].plan.samples_per_problem)

    @property
    def config(self) -> StoredConfig:
        """The newest's, with the names of all the methods that the others used."""

        def names(key: str) -> tuple[str, ...]:
            typed = (name for sweep in self.sweeps for name in getattr(sweep.config, key))
            return tuple(dict.fromkeys(typed))

        keys = ("models", "datasets", "backends", "budgets", "penalties")
        every: dict[str, Any] = {key: names(key) for key in keys}
        return dataclasses.replace(self.sweeps[0].config, **every)

    def warnings(self, folder: Path, writing: str | None) -> list[str]:
        """What a reader of their results should know, a sentence each.

        Args:
            folder: of the store.
            writing: the sweep that is at work there, if one is.
        """
        said = []
        if self.apart:
            reasons = "; ".join(f"{id_}: {why}" for id_, why in self.apart.items())
            one = len(self.apart) == 1
            said.append(
                f"{folder}: {len(self.apart)} sweep{'' if one else 's'} left out that "
                f"do{'es' if one else ''} not fit the last one ({reasons}); "
                f"`lil report {folder} --sweep {'ID' if one else 'ID|all'}` shows "
                f"{'it' if one else 'them'}"
            )
        for sweep in self.unfinished():
            status = sweep.status
            if status == "running":
                status = "still running" if sweep.id == writing else "killed"
            said.append(
                f"{folder}: sweep {sweep.id} of {sweep.values['started']} is unfinished ({status})"
            )
        return said

    def unfinished(self) -> list[Sweep]:
        """Sweeps that did not end by themselves, unless a newer one has all their cells."""
        found: list[Sweep] = []
        done: list[Configuration] = []
        for sweep in self.sweeps:
            if sweep.status == "finished":
                done += sweep.plan.configurations
            elif any(configuration not in done for configuration in sweep.plan.configurations):
                found.append(sweep)
        return found


def read_all(folder: Path, notices: list[str]) -> list[Sweep]:
    """The sweeps of a store, the newest first; a damaged manifest is named and left out.

    Raises:
        InvalidValue: no store there, or the manifest of its last sweep is damaged.
    """
    found = []
    *older, last = manifest.paths(folder)
    for path in reversed(older):
        try:
            found.append(Sweep.read(path))
        except InvalidValue as error:
            notices.append(f"{path} is left out: {error}")
    return [Sweep.read(last), *found]


def named(folder: Path, id_: str) -> Sweep:
    """The sweep whose id begins so.

    Raises:
        InvalidValue: none does, or several do.
    """
    known = {path.stem: path for path in manifest.paths(folder)}
    fit = [stem for stem in known if stem == id_] or [s for s in known if s.startswith(id_)]
    if len(fit) != 1 or not id_:
        allowed = f"last, all, or the beginning of one of {', '.join(known)}"
        raise InvalidValue("sweep", id_, allowed, known)
    return Sweep.read(known[fit[0]])


def together(sweeps: Sequence[Sweep]) -> SweepGroup:
    """The newest sweep and all others that fit it and each other."""
    chosen = list(sweeps[:1])
    apart: dict[str, str] = {}
    for sweep in sweeps[1:]:
        why = next(filter(None, (_unfit(sweep, other) for other in chosen)), None)
        if why is None:
            chosen.append(sweep)
        else:
            apart[sweep.id] = why
    return SweepGroup(tuple(chosen), apart)


def grouped(sweeps: Sequence[Sweep]) -> list[SweepGroup]:
    """All sweeps in as few groups that fit together as there are."""
    groups = []
    left = list(sweeps)
    while left:
        group = together(left)
        groups.append(SweepGroup(group.sweeps))
        left = [sweep for sweep in left if sweep.id in group.apart]
    return groups


def _unfit(one: Sweep, other: Sweep) -> str | None:
    """Why two sweeps cannot be shown together; None where they can."""
    for key in _SAME:
        mine, theirs = getattr(one.config, key), getattr(other.config, key)
        if mine != theirs:
            return f"{key} {mine}, not {theirs}"
    mine_, theirs_ = _digests(one.plan), _digests(other.plan)
    for model in mine_.keys() & theirs_.keys():
        if mine_[model] != theirs_[model]:
            return f"other weights under the name {model}"
    for (model, dataset), problems in one.plan.items.items():
        for (model_, dataset_), others in other.plan.items.items():
            prompts = model == model_  # models put problems in prompts of their own
            if dataset == dataset_ and _asked(problems, prompts) != _asked(others, prompts):
                return f"other problems in {dataset}"
    if _decoded_with(one) != _decoded_with(other):
        return "other detectors that act or read the model's states"
    return None


def _digests(plan: Plan) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for configuration in plan.configurations:
        found.setdefault(configuration.model, set()).add(configuration.model_digest)
    return found


def _asked(problems: Sequence[PlannedProblem], prompts: bool) -> list[tuple[object, ...]]:
    """What makes them the same problems."""
    return [(one.item_id, one.gold, one.scorer, prompts and one.prompt) for one in problems]


def _decoded_with(sweep: Sweep) -> set[str]:
    """Detectors whose samples need more of a store than plain traces; others are only replayed."""
    return {
        json.dumps({key: one[key] for key in one if key != "signals"}, sort_keys=True)
        for one in sweep.values["detectors"]
        if one.get("on_stop", {}).get("name", "stop") != "stop" or one.get("signals")
    }
