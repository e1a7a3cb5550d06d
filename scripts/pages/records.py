"""Data of the pages, kept small: the fields of a table once, then a record a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def is_table(value: Any) -> bool:
    """Whether this is a list of records that all have the same fields."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(record, dict) and record.keys() == value[0].keys() for record in value)
    )


def text(value: Any) -> str:
    """JSON with a line for each key on the way to a table and for each of its records."""
    if is_table(value):
        rows = ",\n".join(json.dumps(list(record.values())) for record in value)
        return f'{{"fields": {json.dumps(list(value[0]))}, "records": [\n{rows}\n]}}'
    if isinstance(value, dict):
        lines = ",\n".join(f"{json.dumps(key)}: {text(inner)}" for key, inner in value.items())
        return f"{{\n{lines}\n}}"
    return json.dumps(value)


def joined(value: dict[str, Any]) -> Any:
    """A table's records with their fields again; anything else as it is."""
    if value.keys() != {"fields", "records"}:
        return value
    return [dict(zip(value["fields"], record, strict=True)) for record in value["records"]]


def write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(text(document) + "\n")


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(), object_hook=joined)
