"""Samples and rows as files: CSV, Parquet, Markdown, LaTeX."""

from __future__ import annotations

import importlib.util
import json
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from attention.errors import InvalidValue
from experiments.report.names import short_named
from experiments.report.row import ReportRow, columns
from experiments.report.tables.backends import cost_grids, depth_grids, main_grids, sampling_grids
from experiments.report.tables.grid import Grid
from experiments.store.files.filesystem import require_file, require_writable, whole_file
from experiments.store.samples.sample import Sample

if TYPE_CHECKING:
    import pandas as pd

#: What the name of a file of rows may end in.
ROWS = (".csv", ".parquet", ".md", ".tex")

_DTYPES: Mapping[Any, str] = {int: "Int64", float: "Float64", bool: "boolean"}
_FORMULA = re.compile(r"\A(?=[=+@\-\t\r])")  # a spreadsheet would compute a text that begins so
_MARKDOWN = re.compile(r"([\\`*_|<>\[\]#~$])")
_LATEX = str.maketrans(
    {character: rf"\{character}" for character in "{}$&#%_"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}"}
    | {"[": "{[}", "]": "{]}"}  # after the end of a line it would be its argument
    | {"\u00a0": "~", "—": "---", "…": r"\ldots{}"}
    | {"∞": r"$\infty$", "≤": r"$\leq$", "≥": r"$\geq$"}
)


def check_file(field: str, file: str, suffixes: tuple[str, ...] | None = None) -> None:
    """Refuse a file that cannot be written later: its suffix, its package or its place."""
    if not file:
        raise InvalidValue(field, file, "a file")
    path = Path(file)
    if suffixes is not None and path.suffix.lower() not in suffixes:
        near = tuple(str(path.with_suffix(suffix)) for suffix in suffixes if path.name)
        raise InvalidValue(field, file, f"a file that ends in {', '.join(suffixes)}", near)
    is_parquet = field == "parquet" or path.suffix.lower() == ".parquet"
    if is_parquet and importlib.util.find_spec("pyarrow") is None:
        allowed = "CSV, or the package pyarrow for Parquet (pip install pyarrow)"
        raise InvalidValue(field, file, allowed)
    require_file(path, field)
    require_writable(path.resolve().parent)


def check_files(csv: str | None, parquet: str | None, rows: Sequence[str]) -> None:
    """`check_file` of every file of a report, each for one thing alone."""
    files = [(field, file) for field, file in (("csv", csv), ("parquet", parquet)) if file]
    seen: set[Path] = set()
    for field, file in [*files, *(("rows", file) for file in rows)]:
        check_file(field, file, ROWS if field == "rows" else None)
        if Path(file).resolve() in seen:
            raise InvalidValue(field, file, "a file of its own; another flag names it too")
        seen.add(Path(file).resolve())


def write_samples(
    samples: Sequence[Sample],
    csv: str | None,
    parquet: str | None,
    stores: Sequence[str] | None = None,
) -> None:
    """Write one line a sample, each file atomically; `stores` names each sample's store."""
    for file, suffix in ((csv, ".csv"), (parquet, ".parquet")):
        if file:
            frame = _frame(typing.get_type_hints(Sample), list(map(_flat, samples)), stores)
            _write(suffix[1:], file, _encoded(frame, suffix))


def write_rows(rows: Sequence[ReportRow], file: str, stores: Sequence[str] | None = None) -> None:
    """Write CSV and Parquet with every column, Markdown and LaTeX as the tables for readers."""
    suffix = Path(file).suffix.lower()
    if suffix in (".csv", ".parquet"):
        nested, lines = (dict, list), [row.to_dict().items() for row in rows]
        values = [
            {k: json.dumps(v) if isinstance(v, nested) else v for k, v in line} for line in lines
        ]
        _write("rows", file, _encoded(_frame(columns(), values, stores), suffix))
        return
    as_text = _markdown if suffix == ".md" else _latex
    of_store: dict[str, list[ReportRow]] = {}
    for row, store in zip(rows, stores or [""] * len(rows), strict=True):
        of_store.setdefault(store, []).append(row)
    texts = [
        as_text(grid, f"{store}: {grid.title}" if store else grid.title)
        for store, part in of_store.items()
        for make in (main_grids, cost_grids, depth_grids, sampling_grids)
        for grid in make(short_named(part))
    ]
    head = "% Needs \\usepackage{booktabs} and, for quotation marks, \\usepackage[T1]{fontenc}.\n"
    _write("rows", file, ((head if suffix == ".tex" else "") + "\n".join(texts)).encode())


def _flat(sample: Sample) -> dict[str, object]:
    values = asdict(sample)
    values["backend_params"] = ", ".join(f"{k}={v}" for k, v in sample.backend_params)
    values["shorter"] = " ".join(f"{s.factor}:{s.status}:{s.tokens}" for s in sample.shorter)
    values["curve"] = " ".join(f"{t}:{raw}:{small}" for t, raw, small in sample.curve)
    return values


def _frame(
    hints: Mapping[str, object], lines: Sequence[Mapping[str, object]], stores: Sequence[str] | None
) -> pd.DataFrame:
    """Typed by the class, not by the values: a column of nothing but missing has its type too."""
    import pandas as pd

    frame = pd.DataFrame(
        {
            name: pd.array([line[name] for line in lines], dtype=_dtype(hint))
            for name, hint in hints.items()
        }
    )
    if stores is not None:
        frame.insert(0, "store", list(stores))
    return frame


def _dtype(hint: Any) -> Any:
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if kind is not NoneType]
    return _DTYPES.get(kinds[0], "string") if len(kinds) == 1 else "string"


def _encoded(frame: pd.DataFrame, suffix: str) -> bytes:
    if suffix == ".parquet":
        return bytes(frame.to_parquet(index=False, engine="pyarrow"))
    texts = frame.select_dtypes(["string", "object"]).columns
    frame[texts] = frame[texts].apply(
        lambda column: column.str.replace(_FORMULA, "'", n=1, regex=True)
    )
    return frame.to_csv(index=False, lineterminator="\n").encode("utf-8", "backslashreplace")


def _markdown(grid: Grid, title: str) -> str:
    frame = _grid_frame(grid, _markdown_text, "**{}**", repeated=True)
    sides = ["left"] * grid.labels + ["right"] * (len(grid.columns) - grid.labels)
    table = frame.to_markdown(index=False, disable_numparse=True, colalign=sides)
    caption = f"\n{_markdown_text(grid.caption)}\n" if grid.caption else ""
    return f"### {_markdown_text(title)}\n\n{table}\n{caption}"


def _latex(grid: Grid, title: str) -> str:
    caption = f"{title}. {grid.caption}." if grid.caption else f"{title}."
    sides = "l" * grid.labels + "r" * (len(grid.columns) - grid.labels)
    frame = _grid_frame(grid, _latex_text, r"\textbf{{{}}}", repeated=False)
    return frame.to_latex(index=False, column_format=sides, caption=_latex_text(caption))


def _grid_frame(
    grid: Grid, escape: Callable[[str], str], bold: str, *, repeated: bool
) -> pd.DataFrame:
    """A table's escaped texts; with `repeated`, labels stand in every line."""
    import pandas as pd

    lines = []
    for at, line in enumerate(grid.lines):
        cells = []
        for cell in line.cells:
            inside = escape(f"{cell.value} {cell.interval}" if cell.interval else cell.value)
            inside = bold.format(inside) if cell.bold else inside
            cells.append(inside + (escape("*") if cell.star else ""))
        lines.append([*map(escape, line.labels if repeated else grid.shown_labels(at)), *cells])
    return pd.DataFrame(lines, columns=[escape(name.strip()) for name in grid.columns])


def _markdown_text(text: str) -> str:
    """Text that Markdown shows as it is, in a table's cell too."""
    return _MARKDOWN.sub(r"\\\1", _one_line(text))


def _latex_text(text: str) -> str:
    """Text that LaTeX sets as it is; a minus before a number is a minus sign."""
    return re.sub(r"(?<![\w.-])-(?=\d)", r"$-$", _one_line(text).translate(_LATEX))


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\u00a0" else " " for c in text)


def _write(field: str, file: str, content: bytes) -> None:
    try:
        with whole_file(Path(file)) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        allowed = f"a file that can be written ({error.strerror or error})"
        raise InvalidValue(field, file, allowed) from error
