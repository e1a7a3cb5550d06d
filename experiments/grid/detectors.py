"""Detectors of a configuration: as they are typed, with the parameters of the sweep, and made."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attention.errors import InvalidValue
from attention.spec import Spec, merge, setting, values
from experiments.grid.config import Config
from experiments.grid.models import REASONER
from experiments.grid.plan import require_own_names
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
                spec = DETECTORS.spec(entry)
                detector = build(opened(spec) if config.typed else spec, defaults=defaults)
            except InvalidValue as error:
                if config.typed:
                    raise
                absent[entry] = error
                continue
            # `guardian` and `guardian:stop` are one: twice it would be two samples of one name.
            if detector not in detectors:
                detectors.append(detector)
    require_own_names(detectors)
    return detectors, absent


def defaults_of(config: Config) -> Defaults:
    """What a sweep adds to detectors that bring no parameters of their own."""
    model = next(iter(config.models), None)
    return Defaults(config.detector_params, config.action_params, SHIPPED_WEIGHTS, model)


def choices_of(settings: Iterable[str]) -> Choices:
    """The values to try that are typed as `NAME.PARAMETER=VALUE,...`."""
    choices: Choices = {}
    for text in settings:
        keys, raw = setting("detector_params." + text.strip().removeprefix("detector_params."))
        tried = values(raw)
        if len(keys) != 3 or not tried:
            raise InvalidValue("--set", text, "NAME.PARAMETER=VALUE,..., as budget.tokens=200,400")
        choices.setdefault(keys[1], {}).setdefault(keys[2], []).extend(tried)
    return choices


def combined(config: Config, specs: Sequence[Spec], choices: Choices) -> list[Detector]:
    """Each detector with every combination of the values to try, equal ones once."""
    specs = list(specs)
    if all(spec.is_file for spec in specs):
        specs += [Spec(name) for name in choices]
    names = [spec.name for spec in specs]
    for name in (*(spec.name for spec in specs if not spec.is_file), *choices):
        DETECTORS.find(name)
    for name, parameters in choices.items():
        if name not in names:
            what = f"{name}.{next(iter(parameters))}"
            raise InvalidValue("--set", what, f"a parameter of {', '.join(names)}", names)
    detectors: list[Detector] = []
    defaults = defaults_of(config)
    for spec in specs:
        tried = {} if spec.is_file else choices.get(spec.name, {})
        aliases = () if spec.is_file else DETECTORS.find(spec.name).aliases
        for chosen in itertools.product(*tried.values()):
            own = merge(spec.params, dict(zip(tried, chosen, strict=True)), aliases)
            detector = build(opened(replace(spec, params=own)), defaults=defaults)
            if detector not in detectors:  # which would be two rows of one name
                detectors.append(detector)
    return detectors
