"""Detectors: from what a user types to objects, and short names of them and of penalties."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from attention.errors import InvalidValue
from attention.spec import Spec, merge, setting, split, values
from experiments.grid.config import Config
from experiments.grid.models import REASONER
from experiments.grid.plan import Plan, distinct, require_own_names
from lil import Detector
from lil.detectors import ACTIONS, DETECTORS, Defaults, build, opened

#: What ships of what is trained on a model, by detector and model.
SHIPPED_WEIGHTS: Mapping[str, Mapping[str, str]] = {
    "chopper": {REASONER: "experiments.reasoner:chopper-2.safetensors"}
}

#: Values to try, by detector and parameter.
Choices = dict[str, dict[str, list[Any]]]


def build_detectors(config: Config) -> list[Detector]:
    """The detectors a sweep replays; of a store's, those that are here."""
    return detectors_of(config)[0]


def detectors_of(config: Config) -> tuple[list[Detector], dict[str, InvalidValue]]:
    """The detectors of a configuration, and why others that a store names are not here."""
    detectors: list[Detector] = []
    absent: dict[str, InvalidValue] = {}
    defaults = defaults_of(config)
    with config.following():
        if config.typed:
            for name in config.detector_params:
                DETECTORS.find(name)
            for name in config.action_params:
                if name not in ACTIONS:
                    raise InvalidValue("action", name, f"one of {', '.join(ACTIONS)}", ACTIONS)
        for entry in config.detectors:
            try:
                detectors.append(build(entry, defaults=defaults))
            except InvalidValue as error:
                if config.typed:
                    raise
                absent[entry] = error
    require_own_names(detectors)
    # `guardian` and `guardian:stop` are the same: twice it would be two samples of one name.
    return distinct(detectors), absent


def defaults_of(config: Config) -> Defaults:
    """What a sweep adds to detectors that bring no parameters of their own."""
    model = next(iter(config.models), None)
    return Defaults(config.detector_params, config.action_params, SHIPPED_WEIGHTS, model)


def detectors_like(config: Config, specs: Iterable[Spec]) -> list[Detector]:
    """Detectors that a user names, each once, with a sweep's parameters where they bring none."""
    defaults = defaults_of(config)
    with config.following():
        return distinct([build(spec, defaults=defaults) for spec in specs])


def typed_detectors(text: str | None, settings: Iterable[str] = ()) -> list[Spec]:
    """The detectors of a flag `--detector`, with every combination of the values to try."""
    entries = () if text in (None, "", "none") else dict.fromkeys(split(text or ""))
    return combined([DETECTORS.spec(entry) for entry in entries], typed_choices(settings))


def typed_choices(settings: Iterable[str]) -> Choices:
    """The values to try that are typed as `NAME.PARAMETER=VALUE,...`."""
    choices: Choices = {}
    for text in settings:
        keys, raw = setting("detector_params." + text.strip().removeprefix("detector_params."))
        tried = values(raw)
        if len(keys) != 3 or not tried:
            raise InvalidValue("--set", text, "NAME.PARAMETER=VALUE,..., as budget.tokens=200,400")
        choices.setdefault(keys[1], {}).setdefault(keys[2], []).extend(tried)
    return choices


def combined(specs: Sequence[Spec], choices: Choices) -> list[Spec]:
    """Each detector with every combination of the values to try; a calibrated file is read."""
    for name, parameters in choices.items():
        _require_distinct(name, parameters)
    if all(spec.is_file for spec in specs):
        specs = [*specs, *map(Spec, choices)]
    names = [spec.name for spec in specs]
    for name in choices.keys() - names:
        what = f"{name}.{next(iter(choices[name]))}"
        raise InvalidValue("--set", what, f"a parameter of {', '.join(names)}", names)
    every = []
    for spec in specs:
        tried = choices.get(spec.name, {})
        aliases = () if spec.is_file else DETECTORS.find(spec.name).aliases
        for chosen in itertools.product(*tried.values()):
            own = merge(spec.params, dict(zip(tried, chosen, strict=True)), aliases)
            every.append(opened(replace(spec, params=own)))
    return every


def steps_of(spec: Spec, choices: Choices) -> list[Spec]:
    """The detector with each value of the parameter that is tried, the most cautious first."""
    if spec.action or spec.is_file:
        raise InvalidValue("detector", str(spec), "a name, or with parameters: NAME(A=1)")
    kind = DETECTORS.find(spec.name)
    for other in choices.keys() - {spec.name}:
        key, allowed = next(iter(choices[other])), f"a parameter of {spec.name}"
        raise InvalidValue("--set", f"{other}.{key}", allowed, [f"{spec.name}.{key}"])
    typed = choices.get(spec.name, {})
    if len(typed) > 1:
        allowed = f"values of one parameter; others in brackets: {spec.name}(PARAMETER=VALUE)"
        raise InvalidValue("--set", ", ".join(typed), allowed)
    parameter, values = next(iter(typed.items()), kind.steps())
    if not values:
        allowed = f"--set {spec.name}.PARAMETER=VALUE,... with the settings to try: "
        raise InvalidValue("detector", spec.name, f"{allowed}{spec.name} has none")
    every = (merge(spec.params, {parameter: value}, kind.aliases) for value in values)
    return [Spec(spec.name, own, "stop") for own in every]


def _require_distinct(name: str, parameters: Mapping[str, Sequence[Any]]) -> None:
    """Refuse values of two parameters of a detector that say the same."""
    for group in DETECTORS.find(name).aliases:
        first, *others = [parameter for parameter in group if parameter in parameters] or [""]
        if others:
            allowed = f"{others[0]} or {first} of {name}, not both"
            raise InvalidValue(others[0], parameters[others[0]], allowed)


def labels(detectors: Sequence[Detector]) -> list[str]:
    """A name for each detector; parameters are spelled out where name and action are not unique."""
    return _labels([(f"{d.name}:{d.action.name}", d.params()) for d in detectors])


def penalty_labels(plan: Plan) -> list[str]:
    """A name for the penalty of each configuration of the plan; "none" where it has none."""
    tables = distinct(dict(table) for c in plan.configurations for table in c.penalties)
    names = _labels([(table["name"], table) for table in tables])
    return [
        "+".join(names[tables.index(dict(table))] for table in configuration.penalties) or "none"
        for configuration in plan.configurations
    ]


def _labels(things: Sequence[tuple[str, Mapping[str, object]]]) -> list[str]:
    names = [name for name, _ in things]
    out = []
    for name, params in things:
        others = [other for same, other in things if same == name]
        shown = {
            key: _distinguishing(value, [other[key] for other in others])
            for key, value in params.items()
            if any(other[key] != value for other in others)
        }
        inside = ", ".join(f"{key}={short(value)}" for key, value in shown.items())
        label = name.partition(":")[0]
        out.append(f"{label}({inside})" if names.count(name) > 1 else label)
    return out


def _distinguishing(value: object, others: Sequence[object]) -> object:
    """A value; parts whose names are those of other parts, with all their parameters."""
    if not _are_parts(value) or short(value) not in map(short, (o for o in others if o != value)):
        return value
    return "+".join(
        f"{part['name']}({', '.join(f'{k}={short(v)}' for k, v in part.items() if k != 'name')})"
        for part in cast("list[dict[str, object]]", value)
    )


def _are_parts(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(part, dict) and "name" in part for part in value
    )


def short(value: object) -> str:
    """A parameter's value as labels and tables show it; of a detector's parts, their names."""
    if _are_parts(value):
        return "+".join(str(part["name"]) for part in cast("list[dict[str, object]]", value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
