"""The page of lossless decoding shows what was measured, and every output measured was the same."""

from __future__ import annotations

import json

import check_lossless
import lossless_page
import lossless_readings
import pytest
from transformers import AutoTokenizer

from experiments.reasoner import checkpoint_path, problem


def test_the_page_shows_what_was_measured() -> None:
    assert lossless_page.main(["--check"]) == 0
    rows = json.loads(lossless_page.KEPT.read_text())["spared"]
    cells = {(row["backend"], row["budget"], row["drafts"]) for row in rows}
    assert cells == {
        (*cell, k) for cell in lossless_readings.CELLS for k in lossless_readings.DRAFTS
    }
    assert all(row["same"] == row["problems"] for row in rows)
    assert all(row["accepted"] <= row["looked_at"] for row in rows)


def test_every_output_of_the_whole_check_is_full_attentions() -> None:
    rows = json.loads(lossless_page.KEPT.read_text())["checked"]
    texts = [row for row in rows if "prompts" in row]
    assert {(row["backend"], row["budget"], row["drafts"]) for row in texts} == {
        (name, budget, k)
        for name, budgets in check_lossless.CELLS.items()
        for budget in budgets
        for k in check_lossless.DRAFTS
    }
    assert all(row["same"] == row["prompts"] == 96 for row in texts)
    draws = [row for row in rows if "draws" in row]
    assert {row["backend"] for row in draws} == {"quest", "h2o", "oracle"}
    assert all(row["draws"] == check_lossless.DRAWS for row in draws)
    assert all(row["p"] >= check_lossless.CHANCE and row["refused"] > 100 for row in draws)


def test_how_long_the_texts_of_the_whole_check_are() -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint_path())
    levels = check_lossless.LEVELS
    prompts = [problem(levels[at % 3], "study", at // 3).prompt for at in range(96)]
    lengths = [len(tokenizer(one)["input_ids"]) + 200 for one in prompts]
    page = " ".join(lossless_page.PAGE.read_text().split())
    longest = max(max(budgets) for budgets in check_lossless.CELLS.values())
    assert f"a text has {max(lengths)} tokens at most" in page
    more = sum(one > longest for one in lengths)
    assert f"{more} of the 96 may have more than {longest}" in page


def test_of_long_contexts_the_page_shows_every_row() -> None:
    row = {"context": 16000, "backend": "quest 1024", "drafts": 4, "tokens": 64, "same": 63,
           "kept": 0.5, "keys": 0.25, "ms_a_token": 10.0, "seconds": 1.5}  # fmt: skip
    full = row | {"backend": "full", "drafts": None, "kept": None, "keys": 1.0}
    about = {"model": "m", "source": "s", "device": "d", "threads": 2, "repeats": 3}
    found = lossless_page.long({"rows": [full, row], **about})
    assert "| 16,000 | quest 1024 | 4 | 64 | 63 | 50.0 | 0.25 | 10.0 | 1.50 |" in found
    assert "| 16,000 | full | - | 64 | 63 | - | 1.00 |" in found
    assert "3 turns" in found


@pytest.mark.slow
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
    rows = json.loads(lossless_page.KEPT.read_text())["spared"]
    forwards = [row["steps"] + row["checks"] for row in rows]
    page = lossless_page.PAGE.read_text()
    assert f"[{min(forwards):.1f} to {max(forwards):.1f} forwards a token]" in page
    assert any(row["keys"] > 1 for row in rows)


def test_what_is_said_of_long_contexts() -> None:
    found = json.loads(lossless_page.KEPT.read_text())["long"]
    rows = found["rows"]
    assert found["repeats"] >= 3
    drafted = [row for row in rows if row["drafts"]]
    assert {row["context"] for row in drafted} == {2000, 16000}
    assert all(row["seconds"] > 1 and row["keys"] < 1 for row in drafted)
    page = " ".join(lossless_page.PAGE.read_text().split())
    seconds, keys = (sorted(row[name] for row in drafted) for name in ("seconds", "keys"))
    said = f"takes {seconds[0]:.1f} to {seconds[-1]:.1f} times as long"
    assert f"{said}, for {keys[0]:.2f} to {keys[-1]:.2f} of the keys" in page
    assert all(row["same"] == row["tokens"] for row in rows)
