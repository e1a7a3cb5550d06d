"""Detectors given by the file of `lil calibrate`: their names and parameters stand for it."""

from __future__ import annotations

from typing import Any


def split_file(entry: str) -> tuple[str, str]:
    """The file and the action behind a colon of `FILE.json` or `FILE.json:ACTION`; else no file."""
    path, colon, what = entry.rpartition(":")
    if entry.endswith(".json"):
        return entry, ""
    return (path, what) if colon and path.endswith(".json") else ("", "")


def expand(asked: dict[str, Any], under: dict[str, Any]) -> None:
    """Put a detector's name where a file of it stands, and its parameters beside those asked for.

    So a sweep's manifest says what was used, wherever the file may be later.

    Args:
        asked: a preset's keys, or those of a command line; changed.
        under: what it goes over, whose parameters of the same detector no longer hold; changed.

    Raises:
        InvalidValue: a file that cannot be read, or names no detector that there is.
    """
    names = []
    for entry in asked.get("detectors", ()):
        path, what = split_file(entry)
        if not path:
            names.append(entry)
            continue
        from lil.detectors import described, load

        params = described(load(path))
        name = params.pop("name")
        names.append(f"{name}:{what}" if what else name)
        for tables in (asked, under):
            tables["detector_params"] = dict(tables.get("detector_params", {}))
        under["detector_params"].pop(name, None)
        own = asked["detector_params"]
        own[name] = {**params, **own.get(name, {})}
    if names:
        asked["detectors"] = tuple(names)
