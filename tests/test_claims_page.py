"""The page of the papers' claims says no number that the files it names do not say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "results" / "claims.md"
PAGES = {name: DOCS / "results" / f"{name}.md"
         for name in ("demo", "actions", "null_worlds", "real_models", "performance")}  # fmt: skip
PAGES["study"] = DOCS / "STUDY.md"
ROWS = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines()
        if re.match(r"\| \d+ \|", line)]  # fmt: skip
VERDICTS = ("seen", "not seen", "not told apart", "opposite", "cannot be tested here",
            "cannot be told")  # fmt: skip


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list):
        for one in value:
            yield from numbers(one)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value


def told(where: str) -> set[str]:
    """All numbers of the files that a row names, as they may be written."""
    text, found = "", set()
    for name, page in PAGES.items():
        if re.search(rf"\b{name}(?!\w|\.json)", where):
            text += page.read_text()
    for name in re.findall(r"(\w+)\.md", where):
        text += (DOCS / f"{name}.md").read_text()
    if "README" in where:
        text += (DOCS.parent / "README.md").read_text()
    for name in re.findall(r"(\w+)\.json", where):
        for one in numbers(json.loads((DOCS / f"{name}.json").read_text())):
            found |= {f"{one:.3f}", f"{one:.2f}", f"{one:.1f}", f"{one:g}"}
    return found | set(re.findall(r"\d+(?:\.\d+)?", text.replace(",", "")))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_numbers_stand_where_the_row_says(row: list[str]) -> None:
    _, _, here, measured, where = row
    known = told(where)
    said = re.findall(r"(?<![\w.])\d+\.\d+(?![\w.]*B)", measured.replace(",", ""))
    assert not [one for one in said if one not in known and one.rstrip("0") not in known]
    # Counts as well, such as "23 of 61".
    counts = re.findall(r"\b(\d+) of (\d+)\b", measured.replace(",", ""))
    assert not [pair for pair in counts if not {*pair} <= known]
    verdicts = re.findall(r"\*\*([^*]+)\*\*", here)
    assert verdicts
    assert all(one.lower() in VERDICTS for one in verdicts)


def test_a_number_that_stands_nowhere_is_found() -> None:
    row = [*ROWS[2]]
    row[3] += " 123.456"
    with pytest.raises(AssertionError):
        test_numbers_stand_where_the_row_says(row)


def test_every_paper_is_there() -> None:
    claims = " ".join(row[1] for row in ROWS)
    for paper in ("(Lil", "(LZ", "(WSC", "2605.24168"):
        assert paper in claims
    assert [row[0] for row in ROWS] == [str(n) for n in range(1, len(ROWS) + 1)]
