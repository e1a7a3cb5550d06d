"""The page of what was seen on a GPU shows what was measured, and counts as it says."""

from __future__ import annotations

import json

import gpu_page


def test_the_page_shows_what_was_measured() -> None:
    assert gpu_page.main(["--check"]) == 0


def test_shorter_steps_are_counted() -> None:
    found = json.loads(gpu_page.KEPT.read_text())
    wanted = {"graphed": "graphs_ms", "attention": "ms", "model": "ms"}
    shorter = cells = 0
    for part, field in wanted.items():
        for row in found[part]["rows"]:
            if row["backend"] in ("full", "transformers"):
                continue
            full = [
                other[field]
                for other in found[part]["rows"]
                if other["backend"] == "full"
                and other["batch"] == row["batch"]
                and other.get("context") == row.get("context")
            ]
            assert len(full) == 1
            cells, shorter = cells + 1, shorter + (row[field] < full[0])
    assert f"shorter than full attention's: {shorter} of {cells}." in gpu_page.PAGE.read_text()


def test_a_row_that_gets_faster_is_counted() -> None:
    found = json.loads(gpu_page.KEPT.read_text())
    before = gpu_page.sentence(found)
    for row in found["graphed"]["rows"]:
        if row["backend"] == "quest":
            row["graphs_ms"] = 1.0
    three = gpu_page.sentence(found)
    assert three != before
    assert "4 of 34" in three


def test_differences_stay_within_what_is_allowed() -> None:
    found = json.loads(gpu_page.KEPT.read_text())
    assert all(one["difference"] <= one["allowed"] for one in found["oracle"])
    assert all(one["same"] == one["tokens"] for one in found["graph_tokens"])
