"""A detector as data, name and parameters, and the file that `lil calibrate` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from attention.registry import following
from lil.detectors._contract.base import Detector
from lil.detectors._contract.registry import DETECTORS

#: The value of `format` in a calibrated detector's file.
CALIBRATED = "lil-calibrated-1"


def described(detector: Detector) -> dict[str, Any]:
    """Name, or import path where that finds another class, and all parameters but the action."""
    kind = type(detector)
    own = detector.name in DETECTORS.names() and DETECTORS.find(detector.name) is kind
    params = {key: value for key, value in detector.params().items() if key != "on_stop"}
    return {"name": detector.name if own else f"{kind.__module__}:{kind.__qualname__}", **params}


def made(given: object, field: str) -> Detector:
    """The detector of a mapping that has a name, or of a name alone.

    Args:
        given: as `described` gives it.
        field: what a message calls it.

    Raises:
        InvalidValue: neither, or a detector that cannot be found or made.
    """
    if isinstance(given, str):
        return DETECTORS.get(given.strip())
    if isinstance(given, Mapping) and isinstance(given.get("name"), str):
        return DETECTORS.get(**given)
    raise InvalidValue(field, given, "a detector's name, or a mapping of name and parameters")


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
    allowed = "a file of `lil calibrate`"
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidValue("detector", str(path), f"{allowed} ({error})") from error
    if not isinstance(values, dict) or values.get("format") != CALIBRATED:
        raise InvalidValue("detector", str(path), f"{allowed}: format = {CALIBRATED}")
    given = values.get("detector")
    for name in import_paths(given):
        raise InvalidValue(
            "detector", name, f"a name that ships or is installed: {path} is data, not code"
        )
    with following(()):
        return made(given, f"detector in {path}")


def import_paths(given: object) -> list[str]:
    """The import paths by which a detector's name, its parts or its codec stand in data.

    Args:
        given: a name, names joined by +, or a mapping of name and parameters.
    """
    if isinstance(given, str):
        return [one.strip() for one in given.split("+") if ":" in one]
    if isinstance(given, Mapping):
        kept = [given.get(key) for key in ("name", "codec", "parts")]
        return [path for one in kept for path in import_paths(one)]
    if isinstance(given, Sequence):
        return [path for one in given for path in import_paths(one)]
    return []
