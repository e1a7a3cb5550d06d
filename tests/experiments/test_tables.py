"""Tables and exports: what stands in them, and that no name breaks them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from synthetic_samples import demo, failed, sample, sparse

from experiments.report.exports import write_rows, write_samples
from experiments.report.measures import summarise
from experiments.report.names import series, short_names
from experiments.report.row import columns
from experiments.report.tables import rich_table
from experiments.report.tables.backends import main_grids, sampling_grids
from experiments.report.tables.grid import Grid


def text_of(grid: Grid, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(rich_table(grid, width))
    return console.file.getvalue()


def test_the_main_table_has_the_rows_numbers() -> None:
    samples = demo(problems=16, budgets=(16,), backends=("h2o",), datasets=("easy",))
    rows = summarise(samples, 0)
    (grid,) = main_grids(rows)
    full, h2o = (line.cells for line in grid.lines)
    (row,) = [r for r in rows if r.backend == "h2o" and r.detector == "none"]
    assert [cell.value for cell in full] == ["—", "100", "—", "—", "—", "0%"]
    assert h2o[0].value == "16"
    assert h2o[3].value == f"{row.length_ratio.estimate:.2f}"
    assert h2o[3].interval == f"[{row.length_ratio.low:.2f}, {row.length_ratio.high:.2f}]"
    assert h2o[3].bold is ("longer" in row.claims)
    assert h2o[4].value == str(row.length_ratio.differs)


def test_labels_name_parameters_that_are_not_the_defaults() -> None:
    params = {"backend": "quest", "backend_params": (("dense_layers", 0), ("page", 8))}
    samples = [
        sample(0),
        sparse(0, **params),
        sparse(0, backend="rkv", backend_params=(("shared", True),)),  # no default has it
        sparse(0, backend="h2o", backend_params=()),
        sparse(0, backend="h2o", backend_params=(("keep_prompt", True),)),
        sparse(0, backend="mine:Own", backend_params=(("a", 1),)),
    ]
    assert set(series(summarise(samples, 0))) == {
        "full",
        "quest (dense_layers=0, page=8)",
        "rkv (shared=True)",
        "h2o",
        "h2o (keep_prompt=True)",
        "mine:Own",
    }


def test_a_configuration_that_is_not_complete_is_not_comparable() -> None:
    (grid,) = main_grids(summarise([sample(0), sample(1), sparse(0), failed(1)], 0))
    assert [cell.value for cell in grid.lines[1].cells[1:3]] == ["1 of 2,", "not comparable"]
    assert "1 samples failed (lil sweep --retry-failed)" in grid.title


def test_pass_at_k_has_a_table_where_problems_have_several_samples() -> None:
    samples = [sample(i, sample_index=at, correct=at == 0) for i in range(3) for at in range(20)]
    (grid,) = sampling_grids(summarise(samples, 0))
    assert grid.columns == ("backend", "budget", "pass@1", "pass@2", "pass@10", "pass@20")
    assert [cell.value for cell in grid.lines[0].cells][1] == "5"
    assert sampling_grids(summarise([sample(0)], 0)) == []


def test_short_names_stay_different() -> None:
    names = ["/a/model.gguf", "/b/x.jsonl", "org/model", "c/x.jsonl", "y.json", "y.jsonl"]
    short = short_names(names)
    assert (short["/a/model.gguf"], short["org/model"]) == ("model.gguf", "model")
    assert (short["/b/x.jsonl"], short["c/x.jsonl"]) == ("b/x", "c/x")
    assert len(set(short.values())) == len(names)


def test_rows_as_csv_and_parquet_have_every_column_with_its_type(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    rows = summarise(demo(problems=2, datasets=("easy",)), 0)
    for name in ("rows.csv", "rows.parquet"):
        write_rows(rows, str(tmp_path / name))
    frame = pd.read_parquet(tmp_path / "rows.parquet")
    assert list(frame) == list(columns()) == list(pd.read_csv(tmp_path / "rows.csv"))
    assert str(frame["budget"].dtype) == "Int64"
    assert str(frame["length_ratio"].dtype) == "Float64"
    effects = [json.loads(text) for text in frame["detector_effect"].dropna()]
    assert {effect["change"]["lost"] for effect in effects} == {0}


def test_texts_that_a_spreadsheet_would_compute_are_guarded(tmp_path: Path) -> None:
    texts = ["=HYPERLINK(1)", "+1", "-1", "@x", "fine"]
    samples = [sample(text, answer=text) for text in texts]
    file = tmp_path / "samples.csv"
    write_samples(samples, str(file), None, ["=store"] * 5)
    frame = pd.read_csv(file)
    assert list(frame["item_id"]) == [f"'{text}" for text in texts[:4]] + ["fine"]
    assert frame["answer"][0] == "'=HYPERLINK(1)"
    assert set(frame["store"]) == {"'=store"}
    assert list(frame["tokens"]) == [100] * 5


def test_markdown_and_latex_show_names_as_they_are(tmp_path: Path) -> None:
    samples = [sample(0, dataset="a|b_c$[1]"), sparse(0, dataset="a|b_c$[1]", tokens=200)]
    for name in ("rows.md", "rows.tex"):
        write_rows(summarise(samples, 0), str(tmp_path / name), ["one", "one"])
    markdown, latex = ((tmp_path / name).read_text() for name in ("rows.md", "rows.tex"))
    assert r"### one: a\|b\_c\$\[1\]: 1 problem (m)" in markdown
    lines = [line for line in markdown.splitlines() if line.startswith("| h2o")]
    assert len(lines) == 2
    assert r"a\textbar{}b\_c\${[}1{]}" in latex
    assert latex.count(r"\toprule") == latex.count(r"\end{tabular}") == 2
