"""`lil compare`: methods at one budget against full attention and the random sample."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_samples import sample

from experiments.cli import main
from experiments.grid.config import Config
from experiments.report.measures import against_random, summarise
from experiments.report.tables.backends import comparison_grid
from experiments.store.samples.sample import Sample


def made(problems: int, **solved: int) -> list[Sample]:
    """Each method solves its first so many problems; keys and tokens vary a little."""
    draw, samples = random.Random(1), []
    for name, count in {"full": problems, **solved}.items():
        role, budget = (
            ("control" if name == "random" else "method"),
            (name != "full" and 32) or None,
        )
        for item in range(problems):
            keys = draw.gauss(400 if budget else 1000, 20)
            numbers = {
                "tokens": draw.randrange(90, 110),
                "keys_read": keys,
                "correct": item < count,
            }
            samples.append(sample(item, backend=name, budget=budget, role=role, **numbers))
    return samples


def test_random_takes_the_place_of_full_attention() -> None:
    samples = made(30, random=12, h2o=20, sink=5, quest=30)
    rows = against_random(samples, summarise(samples, 0), Config())
    full = {"backend": "full", "budget": None}
    placed = [replace(s, **full) if s.backend == "random" else s for s in samples[30:]]
    assert rows == [row for row in summarise(placed, 0) if row.is_sparse]
    assert {claim for row in rows for claim in row.claims} >= {"gains", "loses", "fewer keys"}
    # A sample that the cap cuts had the same room.
    cut = [replace(s, status="capped") if s.backend == "random" else s for s in samples]
    assert against_random(cut, summarise(cut, 0), Config()) == rows


def words(samples: list[Sample]) -> dict[tuple[str, ...], str]:
    grid = comparison_grid(rows := summarise(samples, 0), against_random(samples, rows, Config()))
    return {line.labels: line.cells[-1].value for line in grid.lines}


def test_the_table_claims_what_the_numbers_allow() -> None:
    verdicts = words(made(30, random=12, h2o=13, sink=20, quest=30))
    assert verdicts["random", "quest"] == "better than random"
    assert verdicts["full", "random"] == "worse than full"
    assert verdicts["full", "sink"] == "fewer keys, but loses"
    assert verdicts["random", "h2o"] == "cannot be told"
    assert verdicts["full", "quest"] == "fewer keys"
    few = words(made(5, random=1, quest=5))
    assert {few["full", "quest"], few["random", "quest"]} == {"too few problems"}
    full = made(30)
    same = [replace(s, backend="sink", budget=32, role="method") for s in full]
    assert words([*full, *same])["full", "sink"] == "the same"
    failed = [replace(full[0], status="error", correct=None), *full[1:], *same]
    assert words(failed)["full", "sink"] == "not comparable"


def test_the_same_command_decodes_what_is_new(
    tiny_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = f"compare --model {tiny_model} --dataset easy --limit 2 --max-new-tokens 24 --out"
    arguments = [*command.split(), str(tmp_path), "--budget", "32", "--backend"]
    assert main([*arguments, "h2o"]) == 0
    shown = capfd.readouterr()
    assert shown.out.count("may be said") == 1
    assert shown.out.count("figure: ") == 2  # PNG and SVG
    assert main([*arguments, "h2o,sink", "--json"]) == 0
    shown = capfd.readouterr()
    assert "2 runs decoded" in shown.err
    assert [r["backend"] for r in json.loads(shown.out)["against_random"]] == ["h2o", "sink"]
