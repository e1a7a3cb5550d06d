"""Things with names: one file each in a package, and the file's name is the thing's name.

The folder is read on demand, so adding a codec, a detector or a penalty touches no table.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

from attention.errors import InvalidValue

T = TypeVar("T")

#: What a value typed on a command line may be, by the annotation of the parameter it is for.
_KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "int": (lambda value: _is_whole(value), "a whole number"),
    "int | None": (lambda value: value is None or _is_whole(value), "a whole number"),
    "float": (lambda value: _is_whole(value) or isinstance(value, float), "a number"),
    "str": (lambda value: isinstance(value, str), "a text"),
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "Sequence[int]": (
        lambda value: isinstance(value, (list, tuple)) and all(map(_is_whole, value)),
        "a list of whole numbers",
    ),
}


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Folder:
    """The modules of a package; those whose names begin with an underscore are its own business.

    Args:
        package: the package's `__name__`.
        kind: what messages call one of its things.
    """

    package: str
    kind: str

    def names(self) -> list[str]:
        """Every name, sorted."""
        path = importlib.import_module(self.package).__path__
        return sorted(m.name for m in pkgutil.iter_modules(path) if not m.name.startswith("_"))

    def module(self, name: str) -> ModuleType:
        """The file of that name, imported.

        Raises:
            InvalidValue: no such file.
        """
        known = self.names()
        if name not in known:
            raise InvalidValue(self.kind, name, "one of " + ", ".join(known), choices=known)
        return importlib.import_module(f"{self.package}.{name}")

    def describe(self) -> dict[str, str]:
        """Each name with the first line of its documentation."""
        return {name: _first_line(self._documented(name)) for name in self.names()}

    def _documented(self, name: str) -> object:
        """Where a thing is documented: in its file."""
        return self.module(name)


class ClassFolder(Folder, Generic[T]):
    """A package whose files define one class each, whose attribute `name` is the file's name."""

    def find(self, name: str) -> type[T]:
        """The class of that name.

        Raises:
            InvalidValue: unknown name.
        """
        members = vars(self.module(name)).values()
        found = next(m for m in members if isinstance(m, type) and m.__dict__.get("name") == name)
        return cast("type[T]", found)

    def get(self, name: str, **params: Any) -> T:
        """An object by name with its parameters.

        Raises:
            InvalidValue: unknown name, unknown or missing parameter, or a value it refuses.
        """
        found = self.find(name)
        accepted = inspect.signature(found).parameters
        for param in params:
            if param not in accepted:
                allowed = f"a parameter of {name}: " + ", ".join(accepted)
                raise InvalidValue(f"{name} parameter", param, allowed, choices=accepted)
        for param, told in accepted.items():
            if told.default is told.empty and param not in params:
                raise InvalidValue(param, None, f"a value: {name} has no default for it")
        for param, value in params.items():
            fits, allowed = _KINDS.get(str(accepted[param].annotation), (None, ""))
            if fits is not None and not fits(value):
                raise InvalidValue(param, value, allowed)
        return found(**params)

    def _documented(self, name: str) -> object:
        """Where a thing is documented: in its class."""
        return self.find(name)


def _first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]
