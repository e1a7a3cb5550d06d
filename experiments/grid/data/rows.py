"""Rows of data sets: lines of a JSONL file or the hub's, each with the place it came from."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue


@dataclass(frozen=True)
class Row:
    """One problem as it was published: its number in the data set, from 0, place and columns."""

    index: int
    place: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Rows:
    """The chosen rows of a data set, and what a manifest says of where they are from."""

    rows: tuple[Row, ...]
    source: Mapping[str, Any]


def chosen(total: int, limit: int | None, sample: int | None, seed: int) -> list[int]:
    """Which of `total` problems, ascending.

    A sample is the same for every model and backend, and a larger one holds the smaller one of the
    same seed.

    Args:
        limit: the first so many; None for all.
        sample: so many at random instead.
        seed: of the sample.
    """
    if sample is None:
        return list(range(total if limit is None else min(limit, total)))

    def drawn(index: int) -> bytes:
        return hashlib.sha256(f"{seed}/{index}".encode()).digest()

    return sorted(sorted(range(total), key=drawn)[:sample])


def file_rows(path: Path, limit: int | None, sample: int | None, seed: int) -> Rows:
    """Rows of a JSONL file; empty lines are none.

    Raises:
        InvalidValue: an unreadable file, or a line that is no JSON object of plain values.
    """
    try:
        content = path.read_bytes()
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue("dataset", str(path), f"a readable JSONL file ({error})") from error
    every = enumerate(io.StringIO(text, newline=None), start=1)
    lines = [(number, line) for number, line in every if line.strip()]
    rows = []
    for index in chosen(len(lines), limit, sample, seed):
        number, line = lines[index]
        place = f"line {number} of {path}"
        rows.append(Row(index, place, _parse(place, line)))
    return Rows(tuple(rows), {"file_digest": hashlib.sha256(content).hexdigest()[:32]})


def _parse(place: str, line: str) -> dict[str, Any]:
    shown = line.strip()[:60]
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:  # half of a character, which nothing can print or store
        raise InvalidValue(place, shown, f"whole characters ({error.reason})") from error
    except RecursionError as error:
        raise InvalidValue(place, shown, "a JSON object (too many brackets)") from error
    except ValueError as error:  # no JSON, or a number of thousands of digits
        raise InvalidValue(place, shown, f"a JSON object ({error})") from error
    if not isinstance(row, dict):
        raise InvalidValue(place, shown, "a JSON object")
    return row


def hub_rows(
    name: str,
    where: tuple[str, str | None, str],
    revision: str | None,
    limit: int | None,
    sample: int | None,
    seed: int,
) -> Rows:
    """Rows of a data set on the hub.

    Args:
        name: as typed, for messages.
        where: hub id, configuration, split.
        revision: commit, tag or branch; None for the newest.
        limit, sample, seed: as `chosen` takes them.

    Raises:
        InvalidValue: no `datasets` package, or a hub that cannot be reached.
    """
    try:
        import datasets
    except ImportError as error:
        allowed = (
            "the package `datasets` to load it (`scripts/setup eval` installs it), "
            "or the path of a JSONL file with the same columns"
        )
        raise InvalidValue("dataset", name, allowed) from error
    repository, configuration, split = where
    asked = {} if revision is None else {"revision": revision}
    try:
        found = datasets.load_dataset(repository, configuration, split=split, **asked)
    except Exception as error:  # the hub's client raises many kinds
        allowed = f"a reachable hub ({repository}: {error}), or a JSONL file with the same columns"
        raise InvalidValue("dataset", name, allowed) from error
    indices = chosen(len(found), limit, sample, seed)
    rows = [
        Row(index, f"row {index + 1} of {name}", dict(values))
        for index, values in zip(indices, found.select(indices), strict=True)
    ]
    return Rows(tuple(rows), {"revision": revision, "commit": _commit(found)})


def _commit(found: Any) -> str | None:
    """The commit the hub's files were at, from the addresses they were fetched from."""
    fetched = getattr(getattr(found, "info", None), "download_checksums", None) or {}
    commits = {m[1] for address in fetched if (m := re.search(r"@([0-9a-f]{40})/", address))}
    return commits.pop() if len(commits) == 1 else None


#: Characters of an id: it stands in manifests, tables and random streams.
LONGEST_ID = 200


def id_of(row: Row, columns: tuple[str, ...]) -> str:
    """What the first of these columns that is there calls the problem; else its number.

    Raises:
        InvalidValue: neither a number nor a short text.
    """
    for column in columns:
        value = row.values.get(column)
        if value in (None, ""):
            continue
        text = str(value) if isinstance(value, (str, int, float)) else ""
        if not text.isprintable() or not 0 < len(text) <= LONGEST_ID:
            allowed = f"a number or a text of at most {LONGEST_ID} printable characters"
            raise InvalidValue(f"{column} in {row.place}", str(value)[:60], allowed)
        return text
    return str(row.index)


def text_of(row: Row, column: str) -> str:
    """A column that has to be a text.

    Raises:
        InvalidValue: it is none.
    """
    value = row.values[column]
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue(f"{column} in {row.place}", value, "a text")
    return value


def gold_of(row: Row, column: str, behind_marks: bool) -> str:
    """The answer alone: what follows `####` where it has a derivation.

    Raises:
        InvalidValue: none.
    """
    answer = row.values[column]
    plain = isinstance(answer, (str, int)) or (isinstance(answer, float) and math.isfinite(answer))
    text = str(answer).strip() if plain else ""
    if "####" in text:
        text = text.rsplit("####", 1)[1].strip().replace(",", "")
    elif behind_marks:
        text = ""
    if not text:
        shown = answer if len(str(answer)) <= 60 else f"{str(answer)[:60]}..."
        allowed = "an answer" + (" behind ####" if behind_marks else "")
        raise InvalidValue(f"{column} in {row.place}", shown, allowed)
    return text
