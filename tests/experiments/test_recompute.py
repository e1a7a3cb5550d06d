"""Every number of a report, computed a second time by code that shares nothing with the first.

On a store of before, with a penalty, actions and every detector; on a fresh sweep of the demo's
kind; and on one with several samples a problem. And the comparison itself: it finds every field
that is not what it should be.
"""

from __future__ import annotations

import ast
import json
import shutil
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import recompute_report
from recomputing.compare import CLUSTERED, IDENTITY, Comparison
from recomputing.rows import FIELDS

from experiments.cli import main
from experiments.report.row import ReportRow

SMALL = Path(__file__).parent / "data" / "small"
SCRIPTS = Path(__file__).parents[2] / "scripts"

Row = dict[str, Any]


def _report(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capfd.readouterr()
    assert main([*arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capfd.readouterr().out)
    return document


def _compared(store: Path, document: dict[str, Any]) -> Comparison:
    comparison = Comparison(store, document["manifest"]["detectors"])
    comparison.compare(document["rows"])
    return comparison


def test_it_shares_no_code_with_the_packages() -> None:
    files = [SCRIPTS / "recompute_report.py", *(SCRIPTS / "recomputing").glob("*.py")]
    assert len(files) > 5
    imported = set()
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text()))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"numpy", "scipy", "zstandard", "recomputing"}


def test_it_knows_every_field_of_a_row() -> None:
    declared = set(ReportRow.__dataclass_fields__)
    assert declared - FIELDS == set(IDENTITY)
    assert declared >= FIELDS


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A store with a penalty, actions, and detectors of every kind."""
    return Path(shutil.copytree(SMALL, tmp_path / "small"))


@pytest.fixture
def drawn(
    tiny_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> tuple[Path, dict[str, Any]]:
    """A store with several samples a problem, and what its sweep said."""
    out = tmp_path / "drawn"
    asked = ["--preset", "demo-small", "--model", str(tiny_model), "--limit", "3"]
    asked += ["--backends", "full,sink", "--budgets", "32", "--max-new-tokens", "40"]
    asked += ["--temperature", "1.5", "--samples-per-problem", "3", "--threads", "1"]
    return out, _report(capfd, "sweep", *asked, "--no-figures", "--no-page", "--out", str(out))


@pytest.mark.parametrize(
    "command",
    [
        ["report", "--no-figures", "--no-page"],
        [
            *("replay", "--detector", "guardian,budget,chopper,cycle"),
            *("--set", "budget.tokens=100,400", "--f", "20,50", "--rate", "0.3,0.5"),
        ],
    ],
    ids=lambda command: command[0],
)
@pytest.mark.slow
def test_every_number_of_a_stored_sweep(
    small: Path, command: list[str], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    document = _report(capfd, command[0], str(small), *command[1:])
    file = tmp_path / "report.json"
    file.write_text(json.dumps(document))
    assert recompute_report.main([str(small), str(file)]) == 0
    printed = capfd.readouterr().out
    assert "not recomputed" not in printed
    assert "0 fields left out, 0 disagreements" in printed

    pooled = json.loads(json.dumps(document["stopping"]))
    for field, wrong in _wrong_pools(pooled[0]):
        document["stopping"] = [pooled[0] | {field: wrong}, *pooled[1:]]
        file.write_text(json.dumps(document))
        assert recompute_report.main([str(small), str(file)]) == 1, field
        assert f": pooled {field}: " in capfd.readouterr().out
    document["stopping"] = pooled[1:]
    file.write_text(json.dumps(document))
    assert recompute_report.main([str(small), str(file)]) == 1
    document["stopping"] = pooled
    capfd.readouterr()
    document["rows"][-1]["solved_gained"] += 1
    file.write_text(json.dumps(document))
    assert recompute_report.main([str(small), str(file)]) == 1
    assert "DISAGREES" in capfd.readouterr().out


def _wrong_pools(one: Row) -> Iterator[tuple[str, object]]:
    """Each field of a detector over all sparse configurations, with another value."""
    for field, value in one.items():
        if isinstance(value, int):
            yield field, value + 1
        elif isinstance(value, list):
            yield field, [*value, "h2o 1 on nothing"]
        elif isinstance(value, dict):
            for part, number in value.items():
                if number is not None:
                    yield field, value | {part: number + 1}


#: In a stored sweep of before no seconds are known, in the other store nothing is solved or ended.
ELSEWHERE = {"end_to_end_ratio", "sec_per_solved", "sec_per_solved_ratio", "cache_byte_sec_ratio"}
#: Neither has enough loops for bounds, nor a tail of 100 tokens: `test_measures` has.
WASTE = {"wasted_tail_savings"} | {
    f"wasted_{kind}_savings_{bound}" for kind in ("loop", "tail") for bound in ("low", "high")
}


@pytest.mark.slow
def test_it_finds_every_field_that_is_wrong(
    small: Path, drawn: tuple[Path, dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    stored = _report(capfd, "report", str(small), "--no-figures", "--no-page")
    tried = _found_all(_compared(small, stored), stored["rows"])
    tried |= _found_all(_compared(*drawn), drawn[1]["rows"])
    assert tried | ELSEWHERE | WASTE == FIELDS | set(IDENTITY)


def _found_all(
    comparison: Comparison, rows: list[Row], fields: Collection[str] = FIELDS | set(IDENTITY)
) -> set[str]:
    """The fields that have a value, each of which is found when it is another."""
    assert comparison.wrong == []
    tried = {"dense_layer_keys_read_mean"}  # of methods with dense layers, which no row is of
    for at, field, value in _mutations(rows):
        if field in comparison.left_out or field not in fields:
            continue
        comparison.wrong.clear()
        comparison.compare([rows[at] | {field: value}])
        told = "no such configuration" if field in IDENTITY else f" {field}: "
        found = any(told in line for line in comparison.wrong)
        assert found, f"{field}: {rows[at][field]!r} was changed to {value!r}"
        if rows[at][field] is not None:
            tried.add(field)
    comparison.wrong.clear()
    comparison.compare(rows[1:])
    assert comparison.wrong  # a row is missing
    return tried


def _mutations(rows: list[Row]) -> Iterator[tuple[int, str, object]]:
    """Of each field a number off by little, one that is gone, and one where there is none."""
    for field in rows[0]:
        known = [at for at, row in enumerate(rows) if row[field] not in (None, {}, [])]
        unknown = [at for at, row in enumerate(rows) if row[field] is None]
        # Not the same row for each: in the first most is 0 or 1.
        at = known[len(known) // 2] if known else None
        if at is not None:
            yield at, field, None
            for value in _off(field, rows[at][field]):
                yield at, field, value
        if unknown and field not in IDENTITY:
            yield unknown[0], field, 0.5


def _off(field: str, value: object) -> list[object]:
    if isinstance(value, str):
        return [value + "x"] if field in IDENTITY else []  # a reason's words are its own
    if isinstance(value, dict):
        return [value | {name: value[name] + 1} for name in value if _number(value[name])]
    if isinstance(value, list):
        last = value[-1]
        return [
            value[:-1],
            *([*value[:-1], [*last[:i], last[i] + 1, *last[i + 1 :]]] for i in (0, 2)),
        ]
    assert _number(value)
    assert isinstance(value, (int, float))
    if isinstance(value, int):
        return [value + 1, value - 1]
    if field.endswith(("_low", "_high")) and "accuracy" not in field:
        return [value * 3 + 3, -value * 3 - 3]  # a bootstrap's: off by more than its resamples
    return [value + 1e-6 * max(1.0, abs(value)), value + 2.0]


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@pytest.mark.slow
def test_every_number_of_a_fresh_sweep(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "demo")
    # Some full-attention runs are cut at their own cap, some are not.
    asked = ["--preset", "demo-small", "--limit", "6", "--budgets", "64", "--threads", "1"]
    asked += [
        "--max-new-tokens",
        "240",
        "--detector",
        "guardian,chopper",
        "--out",
        out,
        "--no-figures",
    ]
    document = _report(capfd, "sweep", *asked)
    rows = document["rows"]
    assert 0 < rows[0]["pairs_censored"] < rows[0]["pairs"]
    assert {row["backend"] for row in rows} == {"full", "h2o", "sink", "quest", "infllm"}
    comparison = _compared(Path(out), document)
    assert comparison.wrong == []
    assert comparison.left_out == {}
    assert comparison.fields.keys() == FIELDS
    assert sum(number for number, _ in comparison.fields.values()) > 1000
    assert _found_all(comparison, rows, ELSEWHERE) >= ELSEWHERE


@pytest.mark.slow
def test_several_samples_a_problem(drawn: tuple[Path, dict[str, Any]]) -> None:
    store, document = drawn
    assert document["rows"][0]["avg_at_k"] is not None
    assert document["rows"][0]["seconds_null_why"] is None
    comparison = _compared(store, document)
    assert comparison.wrong == []
    assert set(comparison.left_out) == set(CLUSTERED)
