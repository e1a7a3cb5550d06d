"""Detectors given by the file of `lil calibrate`: name and parameters stand for it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lil import Detector


def split_file(entry: str) -> tuple[str, str]:
    """The file and the action behind a colon of `FILE.json` or `FILE.json:ACTION`; else no file."""
    path, colon, what = entry.rpartition(":")
    if entry.endswith(".json"):
        return entry, ""
    return (path, what) if colon and path.endswith(".json") else ("", "")


def expanded(entries: tuple[str, ...]) -> tuple[str, ...]:
    """Detectors as they were asked for, with `NAME(PARAMETER=VALUE)` where a file stands.

    So a sweep's manifest says what was used, wherever the file may be later.

    Raises:
        InvalidValue: a file that cannot be read, or names no detector that there is.
    """
    found = []
    for entry in entries:
        path, what = split_file(entry)
        if path:
            from lil.detectors import load

            entry = typed(load(path)) + (f":{what}" if what else "")
        found.append(entry)
    return tuple(found)


def typed(detector: Detector) -> str:
    """A detector as one types it, `NAME(PARAMETER=VALUE)`."""
    from lil.detectors import described

    params = described(detector)
    return f"{params.pop('name')}({_inside(params)})"


def _inside(params: Mapping[str, Any]) -> str:
    """Parameters as TOML has them in a table of one line, which knows no null."""
    told = ((_key(key), _toml(one)) for key, one in params.items() if one is not None)
    return ", ".join(f"{key} = {value}" for key, value in told)


def _key(key: str) -> str:
    """A key as it is, or in quotes where it could end what it stands in."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{_inside(value)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)
