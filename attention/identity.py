"""The identity of a method, a detector, a penalty or a codec.

Runs are stored under name, version and parameters. The `code` of a class that does not ship, its
sources and the files that its parameters name, may change under the same identity.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attention.sources import import_path, ships, source_digest
from attention.spec import IMPORT_PATH


def named(thing: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Name and parameters, and the version where it is not the first.

    Args:
        thing: has a `name`, and a `version` that is raised where the same parameters give another
            result than before.
        params: resolved and JSON-able.
    """
    version = {} if version_of(type(thing)) == 1 else {"version": version_of(type(thing))}
    return {"name": thing.name, **version, **params}


def version_of(kind: type) -> int:
    """A class's version; one that has a parameter of this name is in its first."""
    own = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    if any(parameter.name == "version" for parameter in own):
        return 1
    return int(getattr(kind, "version", 1))


def code(*things: Any) -> dict[str, str]:
    """Digests of what may change under the same identity; none for what ships.

    Args:
        things: methods, detectors, penalties and codecs, or classes of them. What they are made of
            counts too: what their attribute `uses` holds, and classes that parameters name.

    Returns:
        By import path the sources of each class that does not ship; by name as it is given, each
        file that a parameter of such a class names.
    """
    digests: dict[str, str] = {}
    for thing in things:
        kind = thing if isinstance(thing, type) else type(thing)
        values = [] if isinstance(thing, type) else list(_texts(_values(thing)))
        if not ships(kind):
            digests[import_path(kind)] = source_digest(kind)
            digests |= {name: digest for name in values if (digest := _file_digest(name))}
        classes = [kind_named for kind_named in map(_imported, values) if kind_named is not None]
        inside = () if isinstance(thing, type) else getattr(thing, "uses", ())
        digests |= code(*classes, *inside)
    return digests


def _values(thing: Any) -> list[Any]:
    fields = dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ()
    own = [getattr(thing, parameter.name) for parameter in fields if parameter.init]
    return [*own, thing.params()] if hasattr(thing, "params") else own


def _texts(value: Any) -> Iterator[str]:
    """Every text and path in a parameter, however deep."""
    if isinstance(value, (str, Path)):
        yield str(value)
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _texts(item)


def _file_digest(name: str) -> str | None:
    """What a file holds, if there is one of this name."""
    try:
        path = Path(name).expanduser()
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except (OSError, ValueError, RuntimeError):  # a text that no file can be called
        return None


def _imported(text: str) -> type | None:
    """The class at an import path that has been imported; looking for it imports nothing."""
    if not IMPORT_PATH.fullmatch(text):
        return None
    module, _, attribute = text.partition(":")
    kind = getattr(sys.modules.get(module), attribute, None)
    return kind if isinstance(kind, type) and not ships(kind) else None
