"""The page of lossless decoding shows what was measured, and every output measured was the same."""

from __future__ import annotations

import json

import lossless_page
import lossless_readings


def test_the_page_shows_what_was_measured() -> None:
    assert lossless_page.main(["--check"]) == 0
    rows = json.loads(lossless_page.KEPT.read_text())
    cells = {(row["backend"], row["budget"], row["drafts"]) for row in rows}
    assert cells == {
        (*cell, k) for cell in lossless_readings.CELLS for k in lossless_readings.DRAFTS
    }
    assert all(row["same"] == row["problems"] for row in rows)
    assert all(row["accepted"] <= row["looked_at"] for row in rows)


def test_it_is_measured_so() -> None:
    rows = [*lossless_readings.readings(1, 40)]
    assert len(rows) == len(lossless_readings.CELLS) * len(lossless_readings.DRAFTS)
    for row in rows:
        assert row["same"] == 1
        assert row["tokens"] == 39
        # Each round gives what it keeps and one token more, but where the output ends inside.
        assert row["accepted"] + round(row["checks"] * 39) >= 39
        assert row["keys"] > 0


def test_forwards_a_token_and_rows_that_read_more_are_as_the_page_says() -> None:
    rows = json.loads(lossless_page.KEPT.read_text())
    forwards = [row["steps"] + row["checks"] for row in rows]
    page = lossless_page.PAGE.read_text()
    assert f"[{min(forwards):.1f} to {max(forwards):.1f} forwards a token]" in page
    assert any(row["keys"] > 1 for row in rows)
