"""What a sweep concludes where outputs are cut, answers change or runs are missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sweeping import go

from experiments.grid.config import Config
from experiments.grid.scoring import Judgement
from experiments.report.measures import finding, rows
from experiments.store import manifest
from experiments.store.store import Store
from experiments.store.study import Study

Make = Callable[..., Config]

# Of every method one whose budget exceeds every length here, so that it is full attention.
LARGE: dict[str, dict[str, Any]] = {
    "h2o": {}, "sink": {}, "quest": {"page": 16}, "infllm": {}, "window": {},
    "tova": {}, "random": {}, "oracle": {}, "raas": {}, "rkv": {}, "snapkv": {},
    "uniform": {"dense_layers": 1},
}  # fmt: skip


@pytest.mark.parametrize("most", [24, 9])
def test_what_equals_full_attention_changes_nothing_whatever_the_cap(
    most: int, tiny_config: Make, tmp_path: Path
) -> None:
    """Some outputs end by themselves before 24 tokens; of 9, none need."""
    config = tiny_config(
        backends=",".join(("full", *LARGE)),
        backend_params={name: params for name, params in LARGE.items() if params},
        budgets="4096",
        max_new_tokens=most,
        datasets="easy,medium",
    )
    go(config, tmp_path)
    found = rows(Study.open(tmp_path).samples([]).samples, seed=0)
    assert len(found) == 2 * (1 + len(LARGE))
    assert sum(row.pairs_censored for row in found) > 0
    for row in found:
        assert row.is_complete
        assert row.accuracy_change.estimate == 0
        for ratio in (
            row.length_ratio.estimate, row.length_ratio.low, row.length_ratio.high,
            row.length_ratio_of_sums,
            row.length_ratio_solved.estimate, row.keys_read_per_solved_ratio.estimate,
        ):  # fmt: skip
            assert ratio is None or ratio == pytest.approx(1)
        assert (row.length_ratio.estimate is None) == (row.pairs_censored == row.pairs == 4)
        assert row.capped == row.pairs_censored
    said = finding(found)
    assert "pairs left out: full attention was cut at its cap" in said
    assert "outputs longer" not in said


def test_a_corrected_answer_changes_accuracy_and_decodes_nothing(
    tiny_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a text of the same name with other answers share its verdicts."""
    # A random model solves none.
    judged = lambda _text, gold, *_, **__: Judgement(gold == "right")  # noqa: E731
    monkeypatch.setattr("experiments.store.samples.replay.judged", judged)
    monkeypatch.setattr("experiments.store.store.judged", judged)
    files = [tmp_path / "mine.jsonl", tmp_path / "other" / "mine.jsonl"]
    files[1].parent.mkdir()

    def sweep(first: str, second: str) -> tuple[int, dict[str, float | None]]:
        for file, answer in zip(files, (first, second), strict=True):
            lines = [{"prompt": f"{i} and 1 make", "answer": answer} for i in range(3)]
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        config = tiny_config(datasets=",".join(map(str, files)), backends="full,sink", budgets="32")
        outcome, _ = go(config, tmp_path / "out")
        found = rows(Study.open(tmp_path / "out").samples([]).samples, seed=0)
        return outcome.counts.decoded, {row.dataset: row.accuracy.estimate for row in found}

    one, other = f"{tmp_path.name}/mine", "other/mine"
    assert sweep("wrong", "right")[1] == {one: 0, other: 1}
    assert sweep("right", "right") == (0, {one: 1, other: 1})
    store = Store(tmp_path / "out")
    assert not {"gold", "scorer", "correct"} & {key for record in store for key in record.meta}
    assert store.frame()["correct"].all()
    assert sweep("wrong", "wrong") == (0, {one: 0, other: 0})
    assert not store.frame()["correct"].any()


def test_what_is_still_to_come_is_not_compared(tiny_config: Make, tmp_path: Path) -> None:
    """Rows are stored as they end: what lacks are the longest."""
    config = tiny_config(backends="full,sink", budgets="32,96")
    go(config, tmp_path)
    study = Study.open(tmp_path)
    whole = rows(study.samples([]).samples, seed=0)
    sparse = [
        record for record in study.store if record.meta["cell"]["backend"].get("budget") == 32
    ]
    longest = max(sparse, key=lambda record: record.meta["tokens"])
    del study.store._records[longest.id]
    results = study.samples([])
    assert results.missing == 1
    found = rows(results.samples, seed=0)
    for row, before in zip(found, whole, strict=True):
        if row.budget != 32:
            assert row == before or row.cheaper != before.cheaper
            continue
        assert (row.samples, row.missing, row.n) == (4, 1, 0)
        assert (row.accuracy.estimate, row.length_ratio.estimate, row.mean_tokens.estimate) == (
            None,
            None,
            None,
        )
    assert manifest.read(tmp_path)["status"] == "finished"
