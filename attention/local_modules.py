"""Modules of the folder a command is run in, for import paths that somebody typed."""

from __future__ import annotations

import importlib
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


def import_typed(name: str) -> ModuleType:
    """Import the module of a typed import path, from the working folder if nowhere else.

    The folder is on the path only during this import: no other file in it stands in for a package
    that is not installed.
    """
    folder = str(Path.cwd())
    if not {"", folder}.isdisjoint(sys.path):
        return importlib.import_module(name)
    sys.path.append(folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


#: Packages that are on the path anyway where a command is run in this project's own folder.
_OURS = ("attention", "lil", "experiments", "tests")


@dataclass(frozen=True)
class WithModules:
    """A value for another process, which imports this one's local modules before it reads it."""

    value: Any

    def __reduce__(self) -> Any:
        local = [name for name, module in sys.modules.items() if _is_local(name, module)]
        return _read, (local, pickle.dumps(self.value))


def _is_local(name: str, module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    path = Path.cwd().joinpath(*name.split("."))
    return file in (f"{path}.py", str(path / "__init__.py")) and name.partition(".")[0] not in _OURS


def _read(modules: list[str], data: bytes) -> Any:
    for name in modules:
        import_typed(name)
    return pickle.loads(data)
