"""Detectors: from what a user types to specifications, and with a sweep's parameters to objects."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attention.errors import InvalidValue
from attention.spec import Spec, merge, setting, split, values
from experiments.grid.config import Config
from experiments.grid.models import REASONER
from experiments.grid.plan import distinct, require_own_names
from lil.detectors import ACTIONS, DETECTORS, Defaults, build, opened

if TYPE_CHECKING:
    from lil import Detector

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


def _require_distinct(name: str, parameters: Mapping[str, Sequence[Any]]) -> None:
    """Refuse values of two parameters of a detector that say the same."""
    for group in DETECTORS.find(name).aliases:
        first, *others = [parameter for parameter in group if parameter in parameters] or [""]
        if others:
            allowed = f"{others[0]} or {first} of {name}, not both"
            raise InvalidValue(others[0], parameters[others[0]], allowed)
