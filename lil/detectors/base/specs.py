"""From what a user writes about a detector to the detector, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from attention.registry import Registry, following
from attention.spec import Spec, split
from lil.detectors.base.actions import ACTIONS
from lil.detectors.base.base import Detector

DETECTORS: Registry[Detector] = Registry(
    "detector",
    ("lil.detectors", "lil.detectors.combined"),
    "lil.detectors",
    lambda: Detector,
    example="guardian(f=250)",
    actions=ACTIONS,
)

#: The value of `format` in a calibrated detector's file.
CALIBRATED = "lil-calibrated-1"


@dataclass(frozen=True)
class Defaults:
    """What a sweep adds to a detector: parameters, parameters of actions, files by model.

    `model` is the sweep's own, of which weights are taken where the detector names none.
    """

    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    actions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    weights: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    model: str | None = None


def to_spec(detector: Detector) -> Spec:
    """The `Spec` of a detector without its action; `build` gives the detector back."""
    kind = type(detector)
    registered = detector.name in DETECTORS.names() and DETECTORS.find(detector.name) is kind
    params = {key: value for key, value in detector.params().items() if key != "on_stop"}
    return Spec(detector.name if registered else f"{kind.__module__}:{kind.__qualname__}", params)


def spec_of(value: object, field: str = "detector") -> Spec:
    """A detector's text, mapping or `Spec` as a `Spec`; messages call it `field`."""
    if isinstance(value, str):
        return DETECTORS.spec(value)
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return Spec.of(value)
    if isinstance(value, Spec):
        return value
    raise InvalidValue(field, value, "a detector's name, or a mapping of name and parameters")


def build(value: object, field: str = "detector", defaults: Defaults | None = None) -> Detector:
    """The detector that a text, a mapping or a `Spec` describes, with a sweep's defaults.

    Raises:
        InvalidValue: an unknown detector, parameter or action, a value it refuses, a detector that
            is a part of itself, or none of what was trained on the sweep's model.
    """
    spec = spec_of(value, field)
    if defaults is not None:
        spec = _completed(spec, defaults, ())
    action = {"on_stop": spec.action} if spec.action else {}
    return DETECTORS.get(spec.name, **{**spec.params, **action})


def _completed(spec: Spec, defaults: Defaults, outer: tuple[str, ...]) -> Spec:
    """`spec` with a sweep's defaults, as a part of the detectors `outer`."""
    name, kind = spec.name, DETECTORS.find(spec.name)
    params = DETECTORS.merge(name, defaults.params.get(name, {}), spec.params)
    if isinstance(params.get("parts"), str):
        if name in outer and "parts" not in spec.params:
            raise InvalidValue("parts", params["parts"], f"other detectors than {name} itself")
        inner = [_completed(p, defaults, (*outer, name)) for p in part_specs(params["parts"])]
        params["parts"] = [{"name": part.name, **part.params} for part in inner]
    parameter, command = kind.trained
    if parameter:
        params[parameter] = _weights(name, parameter, command, params.get(parameter), defaults)
    if spec.action:
        params["on_stop"] = {"name": spec.action, **defaults.actions.get(spec.action, {})}
    return Spec(name, params)


def _weights(name: str, parameter: str, command: str, value: Any, defaults: Defaults) -> Any:
    """What was trained: `value`, or the shipped file where it names a model or is None."""
    model = defaults.model if value is None else value
    shipped = defaults.weights.get(name, {})
    if isinstance(model, str) and model in shipped:
        return shipped[model]
    if value is None:
        allowed = (
            f"{parameter} for {model} (--set detector_params.{name}.{parameter}=FILE; "
            f"`{command}` makes them), or another: --detector guardian"
        )
        raise InvalidValue("detector", name, allowed)
    return value


def part_specs(text: str) -> list[Spec]:
    """The detectors of `a+b`; a part has no action of its own."""
    specs = [DETECTORS.spec(part) for part in split(text, "+")]
    for spec in specs:
        if spec.action:
            raise InvalidValue("parts", text, "an action behind the whole, and behind no part")
    return specs


def opened(spec: Spec) -> Spec:
    """`spec`, or the content of the file of `lil calibrate` that it names."""
    if not spec.is_file:
        return spec
    return replace(to_spec(load(spec.name)), action=spec.action)


def load(path: str | Path) -> Detector:
    """The detector that `lil calibrate` chose; it stops after its verdict.

    For another action: `dataclasses.replace(load(path), on_stop="answer")`. A file is data: it
    names what ships or is installed, and no import path.

    Raises:
        InvalidValue: no such file, another kind of file, a detector that cannot be made, or an
            import path.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidValue("detector", str(path), f"a file of `lil calibrate` ({error})") from error
    spec = calibrated(text, "detector", str(path), "a file of `lil calibrate`")
    with following(()):
        return build(spec, f"detector in {path}")


def calibrated(text: str, field: str, source: str, allowed: str) -> Spec:
    """The detector in the text of a file of `lil calibrate`; the rest is for messages."""
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InvalidValue(field, source, f"{allowed} ({error})") from error
    if not isinstance(values, dict) or values.get("format") != CALIBRATED:
        raise InvalidValue(field, source, f"{allowed}: format = {CALIBRATED}")
    if not isinstance(values.get("detector"), Mapping):
        raise InvalidValue(field, source, f"{allowed}, with a detector: name and parameters")
    return Spec.of(values["detector"])
