"""Methods by name, by import path, and from other packages' entry points."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from attention import methods
from attention.backend import Backend
from attention.errors import InvalidValue

GROUP = "lil.attention"


def _own() -> list[str]:
    return [m.name for m in pkgutil.iter_modules(methods.__path__)]


def _foreign() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def names() -> list[str]:
    """Every method that can be named, those of other packages' entry points included."""
    return sorted({*_own(), *_foreign()})


def _load(path: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        allowed = f"an importable package.module:Class ({error})"
        raise InvalidValue("backend", path, allowed) from None


def find(name: str) -> type[Backend]:
    """The class behind a name or a path `package.module:Class`.

    Raises:
        InvalidValue: nothing of that name, or it is no Backend.
    """
    if ":" in name:
        found = _load(name)
    elif name in _own():
        module = importlib.import_module(f"{methods.__name__}.{name}")
        found = next(
            c
            for c in vars(module).values()
            if isinstance(c, type) and issubclass(c, Backend) and c.__dict__.get("name") == name
        )
    elif name in _foreign():
        found = _foreign()[name].load()
    else:
        known = names()
        raise InvalidValue(
            "backend", name, "one of " + ", ".join(known) + ", or package.module:Class", known
        )
    if not (isinstance(found, type) and issubclass(found, Backend)):
        raise InvalidValue("backend", name, "a subclass of attention.Backend")
    return found


def get(name: str, **params: Any) -> Backend:
    """A method by name or import path, with parameters.

    Raises:
        InvalidValue: unknown name, unknown or missing parameter, or a value it refuses.
    """
    found = find(name)
    fields = [f for f in dataclasses.fields(found) if f.init]  # type: ignore[arg-type]
    known = [f.name for f in fields]
    for key in params:
        if key not in known:
            allowed = f"a parameter of {name}: " + (", ".join(known) or "it has none")
            raise InvalidValue("parameter", key, allowed, known)
    for f in fields:
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and f.name not in params:
            raise InvalidValue(f.name, None, f"a value: {name} has no default for it")
    return found(**params)


def describe() -> dict[str, str]:
    """Each name with the one line that says where the method comes from."""
    return {name: find(name).source for name in names()}
