"""Detectors that watch a generation and may end it: one file each, named as its class.

`names()` reads the folder and `get(name, ...)` imports the file on demand, so adding a detector
touches no table. The file `word_salad.py` holds the class `WordSalad`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import cast

from attention.errors import InvalidValue
from lil.detectors._protocol import Detector, Verdict
from lil.detectors.guardian import Guardian

__all__ = ["Detector", "Guardian", "Verdict", "describe", "get", "names"]


def names() -> list[str]:
    """Names of the detectors, sorted."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))


def _class(name: str) -> type[Detector]:
    module = importlib.import_module(f"{__name__}.{name}")
    return cast("type[Detector]", getattr(module, name.title().replace("_", "")))


def get(name: str, **params: object) -> Detector:
    """A detector by name with its parameters.

    Raises:
        InvalidValue: unknown name, unknown parameter, or a value the detector refuses.
    """
    known = names()
    if name not in known:
        raise InvalidValue("detector", name, "one of " + ", ".join(known), choices=known)
    detector = _class(name)
    accepted = list(inspect.signature(detector).parameters)
    for param in params:
        if param not in accepted:
            allowed = f"a parameter of {name}: " + ", ".join(accepted)
            raise InvalidValue(f"{name} parameter", param, allowed, choices=accepted)
    return detector(**params)


def describe() -> dict[str, str]:
    """Each detector's name and its source in one line."""
    return {name: (inspect.getdoc(_class(name)) or "").partition("\n")[0] for name in names()}
