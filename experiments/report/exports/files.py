"""What is said before a file is written."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from attention.errors import InvalidValue
from experiments.store.files.disk import require_file, require_writable


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
