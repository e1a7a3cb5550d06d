"""The identity of a method, a detector, a penalty or a codec: name, version and parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

#: Packages whose classes ship: their version number identifies their code.
SHIPPED = frozenset({"attention", "lil", "experiments"})


def ships(kind: type) -> bool:
    """Whether a class is this project's own."""
    return kind.__module__.partition(".")[0] in SHIPPED


def import_path(kind: type) -> str:
    """A class as `package.module:Class`."""
    return f"{kind.__module__}:{kind.__qualname__}"


def named(thing: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Name and parameters, resolved and JSON-able, and the version where it is not the first.

    The version is raised where the same parameters give another result than before.
    """
    version = version_of(type(thing))
    return {"name": thing.name, **({} if version == 1 else {"version": version}), **params}


def version_of(kind: type) -> int:
    """A class's version; one that has a parameter of this name is in its first."""
    own = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    if any(parameter.name == "version" for parameter in own):
        return 1
    return int(getattr(kind, "version", 1))
