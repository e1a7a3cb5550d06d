"""Rows of data sets: lines of a JSONL or CSV file or the hub's, each with its place."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from experiments.grid.answers import last_boxed
from experiments.grid.comparison import compare
from experiments.grid.scoring import Gold


@dataclass(frozen=True)
class Row:
    """One problem as it was published: its number in the data set, from 0, place and columns."""

    index: int
    place: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Rows:
    """The chosen rows of a data set, of how many, and what a manifest says of their source."""

    rows: tuple[Row, ...]
    of: int
    source: Mapping[str, Any]


@dataclass(frozen=True)
class Selection:
    """The first `limit` problems behind `offset`, all for None, or `sample` of them by `seed`."""

    limit: int | None = None
    sample: int | None = None
    seed: int = 0
    offset: int = 0

    def of(self, total: int) -> list[int]:
        """Which of `total` problems, ascending; a larger sample holds the smaller."""
        if self.sample is None:
            end = total if self.limit is None else min(self.offset + self.limit, total)
            return list(range(self.offset, end))

        def drawn(index: int) -> bytes:
            return hashlib.sha256(f"{self.seed}/{index}".encode()).digest()

        return sorted(sorted(range(total), key=drawn)[: self.sample])


def file_rows(path: Path, selection: Selection = Selection()) -> Rows:
    """Rows of a JSONL file, or of a CSV file with a header."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidValue("dataset", str(path), f"a readable file ({error})") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = f"line {content.count(10, 0, error.start) + 1} of {path}"
        shown = content[error.start : error.start + 1]
        raise InvalidValue(place, shown, f"text in UTF-8 ({error.reason})") from error
    source = {"file_digest": hashlib.sha256(content).hexdigest()[:32]}
    if path.suffix.lower() == ".csv":
        cells = [*_csv_lines(path, text)]
        rows = [Row(at, *cells[at]) for at in selection.of(len(cells))]
        return Rows(tuple(rows), len(cells), source)
    numbered = enumerate(io.StringIO(text, newline=None), start=1)
    lines = [(f"line {number} of {path}", line) for number, line in numbered if line.strip()]
    rows = [Row(at, lines[at][0], _parse(*lines[at])) for at in selection.of(len(lines))]
    return Rows(tuple(rows), len(lines), source)


def _csv_lines(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and columns of each line of a CSV file; an empty cell is no value."""
    header: list[str] | None = None
    before = csv.field_size_limit(sys.maxsize)  # a setting of the process
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    number = 1
    try:
        for cells in lines:
            place, number = f"line {number} of {path}", lines.line_num + 1
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = cells
                if len(set(header)) < len(header) or not all(header):
                    allowed = "a header: a name of its own for each column"
                    raise InvalidValue(place, ",".join(header)[:60], allowed)
                continue
            if len(cells) != len(header):
                allowed = f"{len(header)} cells, as many as the header has"
                raise InvalidValue(place, f"{len(cells)} cells", allowed)
            yield place, {k: v or None for k, v in zip(header, cells, strict=True)}
    except csv.Error as error:
        raise InvalidValue(f"line {lines.line_num} of {path}", str(error), "CSV") from error
    finally:
        csv.field_size_limit(before)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object in which no key stands twice: Python takes the last without a word."""
    for key, count in Counter(key for key, _ in pairs).items():
        if count > 1:
            raise ValueError(f"the key {key!r} stands in it twice")
    return dict(pairs)


class _Number(float):
    """A number of JSON that keeps its digits."""

    def __init__(self, digits: str) -> None:
        self.digits = digits


def _parse(place: str, line: str) -> dict[str, Any]:
    shown = line.strip()[:60]
    try:
        row = json.loads(line, object_pairs_hook=_once, parse_float=_Number)
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
    name: str, where: tuple[str, str | None, str], revision: str | None, selection: Selection
) -> Rows:
    """Rows of a data set on the hub."""
    try:
        import datasets
    except ImportError as error:
        allowed = (
            "the package `datasets` to load it (`scripts/setup eval` installs it), "
            "or the path of a JSONL file with the same columns"
        )
        raise InvalidValue("dataset", name, allowed) from error
    repository, configuration, split = where
    options = {} if revision is None else {"revision": revision}
    try:
        published = datasets.load_dataset(repository, configuration, split=split, **options)
    except Exception as error:  # the hub's client raises many kinds
        allowed = f"a reachable hub ({repository}: {error}), or a JSONL file with the same columns"
        raise InvalidValue("dataset", name, allowed) from error
    indices = selection.of(len(published))
    rows = [
        Row(index, f"row {index + 1} of {name}", dict(values))
        for index, values in zip(indices, published.select(indices), strict=True)
    ]
    return Rows(tuple(rows), len(published), {"revision": revision, "commit": _commit(published)})


def _commit(published: Any) -> str | None:
    """The commit the hub's files were at, from the addresses they were fetched from."""
    fetched = getattr(getattr(published, "info", None), "download_checksums", None) or {}
    commits = {m[1] for address in fetched if (m := re.search(r"@([0-9a-f]{40})/", address))}
    return commits.pop() if len(commits) == 1 else None


#: Characters of an id: it stands in manifests, tables and random streams.
LONGEST_ID = 200


def id_of(row: Row, columns: tuple[str, ...]) -> str:
    """What the first of these columns that is there calls the problem; else its number."""
    for column in columns:
        value = row.values.get(column)
        if value in (None, ""):
            continue
        plain = isinstance(value, str | int | float) and not isinstance(value, bool)
        text = str(value) if plain else ""
        if not text.isprintable() or not 0 < len(text) <= LONGEST_ID:
            allowed = f"a number or a text of at most {LONGEST_ID} printable characters"
            raise InvalidValue(f"{column} in {row.place}", str(value)[:60], allowed)
        return text
    return str(row.index)


def text_of(row: Row, column: str) -> str:
    """A column that has to be a text."""
    value = row.values[column]
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue(f"{column} in {row.place}", value, "a text")
    return value


def messages_of(row: Row, column: str) -> tuple[tuple[str, str], ...]:
    """A chat, (role, content) a message, of which the model writes the next."""
    where, value = f"{column} in {row.place}", row.values[column]
    if not isinstance(value, list) or not value:
        allowed = 'a list of {"role": ..., "content": ...}'
        raise InvalidValue(where, _short(value), allowed)
    messages = []
    for at, message in enumerate(value):
        texts = isinstance(message, dict) and all(
            isinstance(value, str) for value in message.values()
        )
        if not texts or set(message) != {"role", "content"} or not message["role"]:
            allowed = '{"role": ..., "content": ...}, both texts'
            raise InvalidValue(f"message {at + 1} of {where}", _short(message), allowed)
        messages.append((message["role"], message["content"]))
    if messages[-1][0] == "assistant":
        raise InvalidValue(where, _short(value[-1]), "a last message that the model answers")
    return tuple(messages)


#: How programs write that a table has no value.
_MISSING = ("nan", "<na>", "#n/a")
#: A number with commas between its thousands; in a list or a pair these part its members.
_THOUSANDS = re.compile(r"(?<![\d.,(\[{])[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)")


def gold_of(
    row: Row, column: str | None, behind_marks: bool = False, derived: bool = False
) -> Gold:
    r"""The answer alone: what follows `####`, or is in the last `\boxed{}`, of a derivation; of a
    list each; or none."""
    answer = None if column is None else row.values[column]
    if answer is None or (isinstance(answer, str) and answer.strip().lower() in _MISSING):
        return None
    if isinstance(answer, list) and answer:
        golds = (_gold(row, column, item, behind_marks, derived) for item in answer)
        return tuple(dict.fromkeys(golds))
    return _gold(row, column, answer, behind_marks, derived)


def _gold(row: Row, column: str | None, answer: Any, behind_marks: bool, derived: bool) -> str:
    if isinstance(answer, float) and math.isfinite(answer):
        text = f"{Decimal(getattr(answer, 'digits', None) or repr(answer)):f}"
    else:
        text = str(answer).strip() if type(answer) in (str, int) else ""
    place = f"{column or 'answer'} in {row.place}"
    box = last_boxed(text)
    if "####" in text:
        text = text.rsplit("####", 1)[1].strip()
        text = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), text)
        if box is not None and text and compare(box, text).same is False:
            allowed = f"one answer: {text!r} stands behind ####, {box!r} in the last box"
            raise InvalidValue(place, _short(answer), allowed)
    elif behind_marks:
        text = ""
    elif box is not None:
        text = box.strip()
    elif derived:
        allowed = (
            "a derivation with its answer in \\boxed{} or behind #### (--scorer none: no answer)"
        )
        raise InvalidValue(place, _short(answer), allowed)
    if not text:
        allowed = "an answer" + (" behind ####" if behind_marks else "")
        allowed += ", or a list of those that are accepted"
        raise InvalidValue(place, _short(answer), allowed)
    return text


def require_one_line(row: Row, column: str | None, gold: Gold) -> None:
    """Refuse an answer of several lines: which of its numbers is meant, nobody says."""
    for answer in gold if isinstance(gold, tuple) else (gold or "",):
        if "\n" in answer:
            allowed = "an answer alone, or a derivation with it behind #### or in \\boxed{}"
            raise InvalidValue(f"{column or 'answer'} in {row.place}", _short(answer), allowed)


def _short(value: Any) -> Any:
    """A value short enough for a message."""
    return value if len(str(value)) <= 60 else f"{str(value)[:60]}..."
