"""Problems in an installed package: `package:NAME/FOLDER/FILE.jsonl`, or a folder of TOML files.

The package is found and not imported.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path, PurePosixPath

from attention.errors import InvalidValue

#: What the name of such a data set begins with.
PREFIX = "package:"


def is_named(name: str) -> bool:
    """Whether a data set is one of these."""
    return name.startswith(PREFIX)


def checked(name: str) -> str:
    """The name of a data set in a package, if it is one; nothing is looked up."""
    package, *parts = PurePosixPath(name.removeprefix(PREFIX)).parts or ("",)
    if not package.isidentifier() or not parts or ".." in parts:
        allowed = f"{PREFIX}NAME/FILE with an importable package and a JSONL or CSV file in it"
        raise InvalidValue("dataset", name, allowed)
    return name


def path(name: str) -> Path:
    """Where the file lies."""
    package, *parts = PurePosixPath(checked(name).removeprefix(PREFIX)).parts
    spec = importlib.util.find_spec(package)  # of a package on the top level: nothing is run
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    if not folders:
        raise InvalidValue("dataset", name, f"an installed package that is a folder, not {package}")
    files = [folder.joinpath(*parts) for folder in folders]
    there = [file for file in files if file.is_file() or any(file.glob("*.toml"))]
    if not there:
        near = [
            f"{PREFIX}{package}/{place.relative_to(folder).as_posix()}"
            for folder in folders
            for place in sorted(
                {*folder.rglob("*.jsonl"), *folder.rglob("*.csv")}
                | {file.parent for file in folder.rglob("*.toml")}
            )
        ]
        names = ", ".join(near[:6]) or "there is none"
        allowed = f"a JSONL or CSV file of the package, or a folder of TOML files ({names})"
        raise InvalidValue("dataset", name, allowed, near)
    return there[0]
