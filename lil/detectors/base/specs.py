"""A detector as data, name and parameters: as it is typed, and in a file of `lil calibrate`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from attention.registry import following
from attention.spec import Spec, split
from lil.detectors.base.base import Detector
from lil.detectors.base.registry import DETECTORS

#: The value of `format` in a calibrated detector's file.
CALIBRATED = "lil-calibrated-1"


def described(detector: Detector) -> dict[str, Any]:
    """Name, or import path where that finds another class, and all parameters but the action."""
    kind = type(detector)
    own = detector.name in DETECTORS.names() and DETECTORS.find(detector.name) is kind
    params = {key: value for key, value in detector.params().items() if key != "on_stop"}
    return {"name": detector.name if own else f"{kind.__module__}:{kind.__qualname__}", **params}


def spec_of(given: object, field: str) -> Spec:
    """What is asked for: as it is typed, or as `described` gives it.

    Args:
        given: a text, a mapping that has a name, or a `Spec`.
        field: what a message calls it.

    Raises:
        InvalidValue: none of these.
    """
    if isinstance(given, str):
        return DETECTORS.spec(given)
    if isinstance(given, Mapping) and isinstance(given.get("name"), str):
        return Spec.of(given)
    if isinstance(given, Spec):
        return given
    raise InvalidValue(field, given, "a detector's name, or a mapping of name and parameters")


def made(given: object, field: str) -> Detector:
    """The detector that is asked for.

    Args:
        given, field: see `spec_of`.

    Raises:
        InvalidValue: nothing is asked for, or a detector that cannot be found or made.
    """
    spec = spec_of(given, field)
    action = {"on_stop": spec.action} if spec.action else {}
    return DETECTORS.get(spec.name, **{**spec.params, **action})


def parts(text: str) -> list[Spec]:
    """The detectors of `a+b`, which is how those are typed that another one is made of.

    Raises:
        InvalidValue: one that has an action: what follows is said of the whole.
    """
    specs = [DETECTORS.spec(part) for part in split(text, "+")]
    for spec in specs:
        if spec.action:
            raise InvalidValue("parts", text, "an action behind the whole, and behind no part")
    return specs


def opened(spec: Spec) -> Spec:
    """The same with name and parameters where it names a file of `lil calibrate`.

    Raises:
        InvalidValue: a file that cannot be read, or names no detector that there is.
    """
    if not spec.is_file:
        return spec
    return replace(Spec.of(described(load(spec.name))), action=spec.action)


def load(path: str | Path) -> Detector:
    """The detector that `lil calibrate` chose; what follows a verdict is to stop.

    For another action: `dataclasses.replace(load(path), on_stop="answer")`. A file is data: it
    names what ships or is installed, and no import path.

    Args:
        path: of the file it wrote.

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
        return made(spec, f"detector in {path}")


def calibrated(text: str, field: str, source: str, allowed: str) -> Spec:
    """What the text of a file of `lil calibrate` asks for.

    Args:
        text: what the file holds.
        field, source, allowed: what a message calls it, where it comes from, and what it should be.

    Raises:
        InvalidValue: it is another kind of file.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InvalidValue(field, source, f"{allowed} ({error})") from error
    if not isinstance(values, dict) or values.get("format") != CALIBRATED:
        raise InvalidValue(field, source, f"{allowed}: format = {CALIBRATED}")
    if not isinstance(values.get("detector"), Mapping):
        raise InvalidValue(field, source, f"{allowed}, with a detector: name and parameters")
    return Spec.of(values["detector"])
