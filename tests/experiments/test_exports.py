"""Rows and samples as files: nothing lost or half written, names that are markup elsewhere."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crowded_samples import crowded
from synthetic_samples import failed, sample, sparse

from attention.errors import InvalidValue
from experiments.report.exports import check_files, write_rows, write_samples
from experiments.report.exports.markup import latex_text, markdown_text
from experiments.report.measures import ReportRow, rows

NASTY = r"org/50%_of $x^2$ & #1 {a} ~b\c|<d> [e]*`"


@pytest.fixture(scope="module")
def found() -> list[ReportRow]:
    """Rows of everything: missing values, mappings, actions, penalties, an incomplete one."""
    more = [
        make(i, sample_index=j) for i in range(3) for j in range(2) for make in (sample, sparse)
    ]
    return rows([*crowded(problems=2, budgets=(64,)), *more, failed(9)], seed=0)


def back(row: ReportRow, text: dict[str, Any]) -> dict[str, Any]:
    """A line of a file as the row's own values; what is missing is an empty field or None."""
    values: dict[str, Any] = {}
    for name, value in row.to_dict().items():
        read = text[name]
        if read is None or read == "":
            values[name] = None
        elif isinstance(value, dict | list):
            values[name] = json.loads(read)
        else:
            values[name] = type(value)(read) if value is not None else read
    return values


def test_csv_gives_the_rows_back(found: list[ReportRow], tmp_path: Path) -> None:
    write_rows(found, str(tmp_path / "rows.csv"))
    with (tmp_path / "rows.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(found) > 40
    for row, line in zip(found, lines, strict=True):
        assert back(row, line) == json.loads(json.dumps(row.to_dict()))
    assert {line["budget"] for line in lines} == {"", "32", "64"}  # whole, though some are missing
    assert list(tmp_path.iterdir()) == [tmp_path / "rows.csv"]


def test_parquet_gives_the_rows_back_with_types(found: list[ReportRow], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_rows(found, str(tmp_path / "rows.parquet"))
    table = parquet.read_table(tmp_path / "rows.parquet")
    for row, line in zip(found, table.to_pylist(), strict=True):
        assert back(row, line) == json.loads(json.dumps(row.to_dict()))
    write_rows(found[:1], str(tmp_path / "one.parquet"))
    # Of one row most fields are missing; their types are those of all.
    assert parquet.read_table(tmp_path / "one.parquet").schema.types == table.schema.types


def test_samples_keep_whole_numbers_whole(tmp_path: Path) -> None:
    write_samples([sample(0), sparse(1, budget=64, tokens=7)], str(tmp_path / "s.csv"), None)
    first, second = csv.DictReader((tmp_path / "s.csv").open())
    assert (first["budget"], second["budget"], second["tokens"]) == ("", "64", "7")
    assert second["curve"] == "50:200:100 100:400:160"


# ---------------------------------------------------------------- markup


def structure(text: str) -> list[tuple[str, int]]:
    """Every environment's columns and rows; fails where braces, ends or columns do not fit."""
    depth = 0
    for piece in re.findall(r"\\.|[{}]", text.replace("%\\usepackage", "")):
        depth += {"{": 1, "}": -1}.get(piece, 0)
        assert depth >= 0
    assert depth == 0
    opened: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert opened == []
    found = []
    for columns, body in re.findall(r"\\begin{tabular}{(\w+)}(.*?)\\end{tabular}", text, re.S):
        lines = [line for line in body.splitlines() if line.endswith(r"\\")]
        for line in lines:
            assert len(re.findall(r"(?<!\\)&", line)) + 1 == len(columns)
            assert not line.strip().startswith("[")
        found.append((columns, len(lines)))
    return found


def test_latex_has_a_table_for_each_with_every_special_escaped(tmp_path: Path) -> None:
    samples = [replace(one, model=NASTY, penalty="a_b&c") for one in crowded(2, (64,))]
    samples = [one for one in samples if one.detector == "none" and one.backend != "h2o"]
    samples += [replace(one, penalty="none") for one in samples if one.backend == "full"]
    samples = list({(s.pair, s.backend, s.backend_params, s.penalty): s for s in samples}.values())
    write_rows(rows(samples, seed=0), str(tmp_path / "t.tex"))
    text = (tmp_path / "t.tex").read_text()
    head, _, body = text.partition("\n")
    assert head.startswith("%")
    tables = structure(body)
    assert len(tables) == 2 * 2 * 2  # data sets, penalties, main and cost
    assert {columns for columns, _ in tables} == {"lrrrrrr"}
    assert body.count(r"\toprule") == body.count(r"\bottomrule") == len(tables)
    bare = re.sub(r"\\[\\%&#_{}$]", "", body)  # what is left of these is a command's
    assert not re.search(r"[%#_^]", bare)
    assert all(line.count("$") % 2 == 0 for line in bare.splitlines())
    assert all(ord(character) < 128 for character in body)


@pytest.mark.parametrize(
    ("text", "latex", "markdown"),
    [
        ("a_b & 5%", r"a\_b \& 5\%", r"a\_b & 5%"),
        ("-12.5 [-20, -3]", "$-$12.5 {[}$-$20, $-$3{]}", r"-12.5 \[-20, -3\]"),
        ("2019-2024", "2019-2024", "2019-2024"),
        ("\\{~^|<*`", None, None),
        ("a\nb\tc\x07", "a b c ", "a b c "),
        ("≤64 to ∞ — …", r"$\leq$64 to $\infty$ --- \ldots{}", "≤64 to ∞ — …"),
    ],
)
def test_text_stays_text(text: str, latex: str | None, markdown: str | None) -> None:
    if latex is None:
        latex = r"\textbackslash{}\{\textasciitilde{}\textasciicircum{}\textbar{}\textless{}*`"
        markdown = r"\\{\~^\|\<\*\`"
    assert latex_text(text) == latex
    assert markdown_text(text) == markdown


def test_markdown_has_the_columns_of_the_tables_with_intervals(tmp_path: Path) -> None:
    samples = [sample(i, model=NASTY, tokens=100, keys_read=1000.0) for i in range(8)]
    samples += [sparse(i, model=NASTY, tokens=150, keys_read=500.0) for i in range(8)]
    write_rows(rows(samples, seed=0), str(tmp_path / "t.md"))
    lines = (tmp_path / "t.md").read_text().splitlines()
    tables = [line for line in lines if line.startswith("|")]
    assert tables[0] == "| backend | budget | solved | change | length | diff | cut |"
    assert tables[1] == "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    assert tables[3].startswith(
        r"| h2o | 32 | 100 \[68, 100\] | 0.0 \[-32, 32\] | **1.50 \[1.50, 1.50\]**"
    )
    assert r"**0.50 \[0.50, 0.50\]** | 0.40 | 0% |" in tables[7]
    for line in tables:
        assert len(re.findall(r"(?<!\\)\|", line)) in (7, 8)


def test_an_incomplete_configuration_has_no_number_in_any(tmp_path: Path) -> None:
    samples = [sample(i) for i in range(3)] + [sparse(0), sparse(1), failed(2)]
    for suffix in ("md", "tex"):
        write_rows(rows(samples, seed=0), str(tmp_path / f"t.{suffix}"))
        line = next(x for x in (tmp_path / f"t.{suffix}").read_text().splitlines() if "h2o" in x)
        assert "2 of 3," in line
        assert "not comparable" in line
        assert not re.search(r"\d\.\d", line)


# ---------------------------------------------------------------- what cannot be written


@pytest.mark.parametrize(
    ("csv_file", "parquet", "asked", "said"),
    [
        (None, None, ["t.html"], "ends in .csv, .parquet, .md, .tex"),
        (None, None, ["t"], "ends in"),
        (None, None, ["ok.csv", "folder.csv"], "something else is there"),
        (None, None, ["file/t.csv"], "file"),
        ("t.csv", None, ["t.csv"], "a file of its own"),
        (None, None, ["x" * 300 + ".csv"], "a file that can be written"),
        ("a\0b", None, [], "a file that can be written"),
    ],
)
def test_it_is_said_before_anything_is_written(
    csv_file: str | None, parquet: str | None, asked: list[str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.iterdir())
    here = [str(tmp_path / name) for name in asked]
    with pytest.raises(InvalidValue, match=re.escape(said)):
        check_files(csv_file and str(tmp_path / csv_file), parquet, here)
    assert sorted(tmp_path.iterdir()) == before


def test_parquet_without_pyarrow_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for one in (
        (None, str(tmp_path / "s.parquet"), []),
        (None, None, [str(tmp_path / "r.parquet")]),
    ):
        with pytest.raises(InvalidValue, match="pip install pyarrow"):
            check_files(*one)
    check_files(str(tmp_path / "s.csv"), None, [str(tmp_path / "r.md")])


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: Any) -> None:
    target = tmp_path / "rows.csv"
    target.write_text("old")

    def full(path: Path, content: bytes) -> int:
        path.open("wb").write(content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InvalidValue, match="No space left"):
        write_rows(rows([sample(0)], seed=0), str(target))
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "there.csv").write_text("old")
    (tmp_path / "here.csv").symlink_to(tmp_path / "there.csv")
    write_rows(rows([sample(0)], seed=0), str(tmp_path / "here.csv"))
    assert (tmp_path / "here.csv").is_symlink()
    assert (tmp_path / "there.csv").read_text().startswith("model,dataset")
