"""Every number of a report, computed a second time by code that shares nothing with the first.

On a stored sweep, with a penalty, actions and every detector; on a fresh sweep of the demo's
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

import numpy as np
import pytest
import recompute_report
from recomputing import rows as definitions
from recomputing.against import Reading
from recomputing.claims import claims
from recomputing.compare import CLUSTERED, IDENTITY, Comparison
from recomputing.intervals import bootstrap_t, of_mean
from recomputing.rows import FIELDS
from recomputing.samples import Line, Sample
from scipy import stats

from experiments.cli import main
from experiments.report.row import columns

SMALL = Path(__file__).parent / "data" / "small"
SCRIPTS = Path(__file__).parents[2] / "scripts" / "checks"

Row = dict[str, Any]


def _report(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capfd.readouterr()
    assert main([*arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capfd.readouterr().out)
    return document


def _compared(store: Path, document: dict[str, Any]) -> Comparison:
    comparison = Comparison(store, document["manifest"]["detectors"])
    comparison.compare(document["rows"], document.get("pooled"))
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
    others = {"numpy", "scipy", "zstandard", "math_verify", "recomputing"}
    assert imported - set(sys.stdlib_module_names) == others


def test_it_knows_every_field_of_a_row() -> None:
    declared = set(columns())
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
    asked += ["--backend", "full,sink", "--budget", "32", "--max-new-tokens", "40"]
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


#: In the stored sweep too little is, in the other store nothing is solved or ended.
ELSEWHERE = {"end_to_end_ratio", "sec_per_solved", "sec_per_solved_ratio", "cache_byte_sec_ratio"}
#: Nor are there six problems, nor do six differ, nor is either read at a smaller cap.
ELSEWHERE |= {"caps", "claims"} | {
    f"{ratio}_{bound}"
    for ratio in (
        "mean_tokens",
        "length_ratio",
        "penalty_length_ratio",
        "keys_read_per_solved_ratio",
    )
    for bound in ("low", "high")
}
#: Six that both solve and that differ in length are in no store as small as these.
SOLVED = {"length_ratio_solved_low", "length_ratio_solved_high"}
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
    assert tried | ELSEWHERE | SOLVED | WASTE == FIELDS | set(IDENTITY)


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
        if known and field == "caps":  # of a row that has most of them
            at = min(known, key=lambda one: str(rows[one]["caps"]).count("None"))
        if at is not None:
            yield at, field, None
            for value in _off(field, rows[at][field]):
                yield at, field, value
        if unknown and field not in IDENTITY:
            yield unknown[0], field, 0.5


def _off(field: str, value: object) -> list[object]:
    if isinstance(value, str):
        return [] if field == "seconds_null_why" else [value + "x"]  # a reason's words are its own
    if isinstance(value, dict):
        return [value | {name: value[name] + 1} for name in value if _number(value[name])]
    if field == "claims":
        assert isinstance(value, list)
        return [[*value, "longer than that"], *([value[1:]] if value else [])]
    if field == "caps":
        assert isinstance(value, list)
        found: list[object] = [value[1:]]
        for part, number in value[0].items():
            if part not in CLUSTERED:
                found += [[{**value[0], part: off}, *value[1:]] for off in _off(part, number)]
        return found
    if isinstance(value, list):
        last = value[-1]
        return [
            value[:-1],
            *([*value[:-1], [*last[:i], last[i] + 1, *last[i + 1 :]]] for i in (0, 2)),
        ]
    if value is None:
        return [0.5]
    assert _number(value)
    assert isinstance(value, (int, float))
    if isinstance(value, int):
        return [value + 1, value - 1]
    if field.endswith(("_low", "_high")) and not field.startswith(EXACT):
        return [value * 3 + 3, -value * 3 - 3]  # a bootstrap's: off by more than its resamples
    return [value + 1e-6 * max(1.0, abs(value)), value + 2.0]


#: Bounds that have no draws of their own.
EXACT = (
    *("accuracy", "detector_accuracy", "penalty_accuracy"),
    *("length_ratio", "penalty_length_ratio", "keys_read_per_solved_ratio"),
)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@pytest.mark.slow
def test_every_number_of_a_fresh_sweep(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "demo")
    # Some full-attention runs are cut at their own cap, some are not.
    asked = ["--preset", "demo-small", "--limit", "10", "--budget", "64", "--threads", "1"]
    asked += ["--dataset", "easy,medium", "--cap", "4x-full", "--penalty", "none,lz"]
    asked += ["--backend", "full,h2o,quest,window"]
    asked += [
        "--max-new-tokens",
        "300",
        "--detector",
        "guardian,chopper",
        "--out",
        out,
        "--no-figures",
    ]
    document = _report(capfd, "sweep", *asked)
    rows = document["rows"]
    assert 0 < sum(row["pairs_censored"] for row in rows) < sum(row["pairs"] for row in rows)
    assert {row["backend"] for row in rows} == {"full", "h2o", "quest", "window"}
    assert {row["dataset"] for row in document["pooled"]} == {"all"}
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


# ---------------------------------------------------------------- the definitions, by hand


def _line(samples: list[Sample], backend: str = "h2o", role: str = "method") -> Line:
    cell = {"backend": {"name": backend}, "dataset": "easy", "penalties": [], "role": role}
    return Line(cell, None, {one.at: one for one in samples})


def _sample(problem: int, tokens: int, status: str = "finished", **more: Any) -> Sample:
    ids = tuple(range(tokens))
    curve = ((tokens, 2, 1),)
    told = {"solved": True, "keys": float(tokens), "paid": tokens} | more
    return Sample(str(problem), 0, status, tokens=tokens, ids=ids, curve=curve, **told)


def _row(tokens: list[int], factor: int | None, its: int = 100, **more: Any) -> Row:
    full = _line([_sample(at, its) for at in range(len(tokens))], "full")
    line = _line([_sample(at, n, **more) for at, n in enumerate(tokens)])
    return definitions.row(line, full, None, None, Reading(factor, 0))


def test_lengths_by_clipped_logs() -> None:
    row = _row([50, 200, 100, 1000], 2)
    assert row["length_ratio"] == pytest.approx(2 ** (1 / 4))
    assert row["length_ratio_of_sums"] == 1350 / 400
    assert row["length_ratio_differs"] == 3
    assert row["length_ratio_p"] == 1.0
    assert row["pairs_same"] == 1
    assert "length_ratio_low" not in row
    assert _row([50, 200, 100, 1000], None)["length_ratio"] == pytest.approx(10 ** (1 / 4))
    # Six that differ alike: no spread, so no interval but the estimate.
    row = _row([150] * 6, 2)
    assert row["length_ratio_low"] == row["length_ratio_high"] == pytest.approx(1.5)
    assert row["length_ratio_p"] == 2 / 64
    # Equal and opposite: one, and an interval about it that the cap's factor bounds.
    row = _row([50, 200] * 3, 2)
    assert row["length_ratio"] == pytest.approx(1.0)
    assert 0.5 <= row["length_ratio_low"] < 0.6 < 1.8 < row["length_ratio_high"] <= 2.0
    # A partner that was cut is in no ratio.
    full = _line([_sample(0, 100, "capped"), _sample(1, 100)], "full")
    row = definitions.row(
        _line([_sample(0, 150), _sample(1, 120)]), full, None, None, Reading(2, 0)
    )
    assert (row["pairs_censored"], row["length_ratio"]) == (1, pytest.approx(1.2))


def test_keys_of_a_solved_problem() -> None:
    field = "keys_read_per_solved_ratio"
    row = _row([50] * 8, 2)
    assert (row[field], row[f"{field}_p"]) == (pytest.approx(0.5), 2 / 256)
    assert row[f"{field}_low"] == row[f"{field}_high"] == pytest.approx(0.5)
    row = _row([50] * 8, 2, solved=False)
    assert field not in row
    assert (row[f"{field}_differs"], row[f"{field}_p"]) == (8, 2 / 256)
    row = _row([50] * 5, 2)
    assert row[field] == pytest.approx(0.5)
    assert f"{field}_low" not in row
    # More that differ than are tried one by one: drawn, and near what all together give.
    low, high = _row([50] * 20, 2)[f"{field}_p"]
    assert low == 0.0
    assert 2 / 2**20 < high < 1e-3


def test_bounds_lie_where_students_do_at_least() -> None:
    logs = np.log([1.1, 1.2, 1.3, 1.15, 1.25, 1.05, 1.4, 1.1])
    low, high = bootstrap_t([(log, 1.0) for log in logs.tolist()], of_mean, 8, 0)
    error = logs.std(ddof=1) / np.sqrt(8)
    least = stats.t.ppf(0.975, 7) * error
    assert low <= logs.mean() - least + 1e-12
    assert high >= logs.mean() + least - 1e-12
    assert high - low < 4 * least


def _plain_row() -> Row:
    plain: Row = {
        "model": "m",
        "dataset": "easy",
        "backend": "h2o",
        "role": "method",
        "penalty": "none",
        "detector": "none",
        "caps": [],
        "solved_lost": 0,
        "solved_gained": 0,
    }
    for measure in ("length_ratio", "length_ratio_solved", "keys_read_per_solved_ratio"):
        plain |= {f"{measure}{part}": None for part in ("", "_low", "_high", "_p")}
        plain[f"{measure}_differs"] = 0
    return plain | {f"accuracy_change{part}": None for part in ("", "_low", "_high", "_p")}


def _said(*changes: Row) -> list[set[str]]:
    found = claims([_plain_row() | change for change in changes])
    return [found[at, None] for at in range(len(changes))]


def _length(ratio: float, low: float | None, high: float | None, p: float, differs: int = 9) -> Row:
    ends = {"length_ratio_low": low, "length_ratio_high": high}
    return {"length_ratio": ratio, **ends, "length_ratio_p": p, "length_ratio_differs": differs}


def test_what_may_be_said() -> None:
    longer = _length(1.3, 1.1, 1.5, 0.01)
    assert _said(longer) == [{"longer"}]
    assert _said(_length(0.7, 0.5, 0.9, 0.01)) == [{"shorter"}]
    assert _said(longer | {"length_ratio_differs": 5}) == [set()]
    assert _said(longer | {"length_ratio_p": 0.06}) == [set()]
    assert _said(_length(1.01, 1.005, 1.02, 0.01)) == [set()]
    assert _said(_length(1.3, 0.99, 1.5, 0.01)) == [set()]
    # Corrected for all that differ, of the same role alone.
    many = [_length(1.3, 0.9, 1.5, 0.9)] * 9
    late = longer | {"length_ratio_p": 0.04}
    assert _said(late) == [{"longer"}]
    assert _said(late, *many)[0] == set()
    assert _said(late, *(one | {"role": "control"} for one in many))[0] == {"longer"}
    assert _said(late, *(one | {"length_ratio_differs": 0} for one in many))[0] == {"longer"}
    assert _said(longer, *[longer] * 3, many[0])[0] == {"longer"}
    # Clear of the null, whose estimate stands for an interval that it has not.
    null = {"role": "null", "backend": "full again"}
    assert _said(longer, _length(1.05, 0.9, 1.2, 0.5) | null) == [set(), set()]
    assert _said(longer, _length(1.01, 0.98, 1.05, 0.5) | null) == [{"longer"}, set()]
    assert _said(longer, _length(1.2, None, None, 0.5) | null)[0] == set()
    assert _said(longer, _length(1.2, 0.9, 1.3, 0.5) | null | {"dataset": "hard"})[0] == {"longer"}
    lost = {"accuracy_change": -0.01, "accuracy_change_low": -0.5, "accuracy_change_high": -0.001}
    assert _said(lost | {"accuracy_change_p": 0.01, "solved_lost": 7}) == [{"loses"}]
    # Of each cap by itself.
    at_two = longer | {"factor": 2}
    found = claims([{**_plain_row(), **_length(1.3, 0.9, 1.5, 0.01), "caps": [at_two]}])
    assert found == {(0, None): set(), (0, 2): {"longer"}}
