"""Samples and rows as files: CSV, Parquet, Markdown, LaTeX."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from attention.errors import InvalidValue
from experiments.report.exports.frames import row_frame, sample_frame
from experiments.report.exports.markup import latex, markdown
from experiments.report.row import ReportRow
from experiments.report.tables.backends import cost_grids, main_grids, sampling_grids
from experiments.report.tables.grid import Grid
from experiments.store.files.filesystem import require_file, require_writable, whole_file
from experiments.store.samples.sample import Sample

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ROWS", "check_file", "check_files", "write_rows", "write_samples"]

#: What the name of a file of rows may end in.
ROWS = (".csv", ".parquet", ".md", ".tex")


def check_file(field: str, file: str, suffixes: tuple[str, ...] | None = None) -> None:
    """Refuse a file that could not be written later, before anything is.

    Args:
        field: the flag's name.
        file: the path as given.
        suffixes: those that are known; None takes any.

    Raises:
        InvalidValue: an unknown suffix, no such format here, a folder, a place that cannot be
            written.
    """
    if not file:
        raise InvalidValue(field, file, "a file")
    path = Path(file)
    if suffixes is not None and path.suffix.lower() not in suffixes:
        near = tuple(str(path.with_suffix(suffix)) for suffix in suffixes if path.name)
        raise InvalidValue(field, file, f"a file that ends in {', '.join(suffixes)}", near)
    if field == "parquet" or path.suffix.lower() == ".parquet":
        _require_pyarrow(field, file)
    require_file(path, field)
    require_writable(path.resolve().parent)


def _require_pyarrow(field: str, file: str) -> None:
    if importlib.util.find_spec("pyarrow") is None:
        allowed = "CSV, or the package pyarrow for Parquet (pip install pyarrow)"
        raise InvalidValue(field, file, allowed)


def check_files(csv: str | None, parquet: str | None, rows: Sequence[str]) -> None:
    """Refuse what could not be written later, before anything is printed or written.

    Raises:
        InvalidValue: an unknown suffix, no package for a format, a place that cannot be written,
            one file for two things.
    """
    asked = [(field, file) for field, file in (("csv", csv), ("parquet", parquet)) if file]
    asked += [("rows", file) for file in rows]
    seen: set[Path] = set()
    for field, file in asked:
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
    """Every sample, one a line; each file appears whole or not at all.

    Args:
        stores: each sample's store, where there are several.

    Raises:
        InvalidValue: it cannot be written.
    """
    for file, suffix in ((csv, ".csv"), (parquet, ".parquet")):
        if file:
            _write(suffix[1:], file, _encoded(_from(stores, sample_frame(samples)), suffix))


def write_rows(rows: Sequence[ReportRow], file: str, stores: Sequence[str] | None = None) -> None:
    """The rows in the format that the file's suffix says; it appears whole or not at all.

    CSV and Parquet hold every field, Markdown and LaTeX the tables for readers.

    Args:
        stores: each row's store, where there are several.

    Raises:
        InvalidValue: it cannot be written.
    """
    suffix = Path(file).suffix.lower()
    if suffix in (".csv", ".parquet"):
        content = _encoded(_from(stores, row_frame(rows)), suffix)
    else:
        grids = _grids(rows) if stores is None else _grids_of_each(rows, stores)
        content = (markdown if suffix == ".md" else latex)(grids).encode()
    _write("rows", file, content)


def _grids(rows: Sequence[ReportRow]) -> list[Grid]:
    return [*main_grids(rows), *cost_grids(rows), *sampling_grids(rows)]


def _grids_of_each(rows: Sequence[ReportRow], stores: Sequence[str]) -> list[Grid]:
    apart: dict[str, list[ReportRow]] = {}
    for row, store in zip(rows, stores, strict=True):
        apart.setdefault(store, []).append(row)
    return [
        replace(grid, title=f"{store}: {grid.title}")
        for store, own in apart.items()
        for grid in _grids(own)
    ]


def _from(stores: Sequence[str] | None, frame: pd.DataFrame) -> pd.DataFrame:
    if stores is not None:
        frame.insert(0, "store", list(stores))
    return frame


def _encoded(frame: pd.DataFrame, suffix: str) -> bytes:
    if suffix == ".csv":
        return frame.to_csv(index=False, lineterminator="\n").encode("utf-8", "backslashreplace")
    return bytes(frame.to_parquet(index=False, engine="pyarrow"))


def _write(field: str, file: str, content: bytes) -> None:
    try:
        with whole_file(Path(file)) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        allowed = f"a file that can be written ({error.strerror or error})"
        raise InvalidValue(field, file, allowed) from error
