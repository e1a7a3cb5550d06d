"""Methods by name, by import path, and from other packages' entry points."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
import traceback
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from attention import methods
from attention.backend import Backend
from attention.errors import InvalidValue

GROUP = "lil.attention"
OWN = "lil-attention"

# A name stands in lists (a,b) and in dotted keys (backend_params.a.page), so it has neither.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Parameter:
    """A parameter of a method; `default` is None where it is `required`."""

    name: str
    required: bool
    default: Any

    def __str__(self) -> str:
        return self.name if self.required else f"{self.name}={self.default!r}"


@dataclass(frozen=True)
class Known:
    """A name and what stands behind it.

    Attributes:
        package: the distribution it comes from, with its version where it is another one.
        source: one line saying where the method comes from; empty where there is an error.
        parameters: in the order the method declares them.
        error: why the name cannot be used, or None.
    """

    name: str
    package: str
    source: str = ""
    parameters: tuple[Parameter, ...] = ()
    error: str | None = None


def _own() -> list[str]:
    return [m.name for m in pkgutil.iter_modules(methods.__path__)]


def _foreign() -> dict[str, list[EntryPoint]]:
    """Entry points of other packages by name; a name should have one."""
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, []).append(point)
    return found


def _package(point: EntryPoint) -> str:
    dist = point.dist
    return "an unnamed package" if dist is None else f"{dist.name} {dist.version}"


def names() -> list[str]:
    """Every method that can be named, those of other packages' entry points included."""
    return sorted({*_own(), *_foreign()})


def _cause(error: Exception) -> str:
    """What went wrong and in which line of whose file, in one line."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if f.filename != __file__ and "importlib" not in f.filename]
    return f"{text} ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else text


def _checked(found: Any, name: str) -> type[Backend]:
    """`found` if it is what a name can stand for: a Backend, a dataclass, with name and source."""
    if not (isinstance(found, type) and issubclass(found, Backend)):
        raise InvalidValue("backend", name, "a subclass of attention.Backend")
    made = getattr(found, "__dataclass_params__", None)
    if made is None or not made.frozen:
        raise InvalidValue("backend", name, "a frozen dataclass, @dataclass(frozen=True)")
    declared = getattr(found, "name", None)
    if not isinstance(declared, str) or not _NAME.fullmatch(declared):
        allowed = f"a class variable `name` of {found.__name__}: letters, digits, _ and -"
        raise InvalidValue("name", declared, allowed)
    if not isinstance(getattr(found, "source", None), str):
        raise InvalidValue("source", None, f"a class variable `source` of {found.__name__}: a line")
    return found


def _shipped(name: str) -> type[Backend]:
    module = importlib.import_module(f"{methods.__name__}.{name}")
    found: type[Backend] = next(
        c
        for c in vars(module).values()
        if isinstance(c, type) and issubclass(c, Backend) and c.__dict__.get("name") == name
    )
    return found


def _installed(name: str, points: list[EntryPoint]) -> type[Backend]:
    """The class behind the entry points of one name.

    Raises:
        InvalidValue: two packages use the name, it cannot be imported, it is no Backend, or the
            class calls itself otherwise.
    """
    if len(points) > 1:
        who = " and ".join(sorted(map(_package, points)))
        raise InvalidValue("backend", name, f"one package of that name, not {who}: uninstall one")
    (point,) = points
    package = _package(point)
    try:
        loaded = point.load()
    except Exception as error:  # whatever another package does when it is imported
        allowed = f"{point.value} of {package} to import ({_cause(error)})"
        raise InvalidValue("backend", name, allowed) from error
    found = _checked(loaded, name)
    if found.name != name:
        # Results are stored under the class's name.
        allowed = f"the name of {point.value} of {package}, which calls itself {found.name!r}"
        raise InvalidValue("backend", name, allowed)
    return found


def _at(path: str) -> type[Backend]:
    """The class at `package.module:Class`, if its name is not another one's.

    Raises:
        InvalidValue: it cannot be imported, is no Backend, or its name is taken.
    """
    module, _, attribute = path.partition(":")
    try:
        loaded = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a file somebody is working on may do anything
        allowed = f"an importable package.module:Class ({_cause(error)})"
        raise InvalidValue("backend", path, allowed) from error
    found = _checked(loaded, path)
    # Results are stored under the name: two methods must not share one.
    points = _foreign().get(found.name, [])
    if found.name in _own():
        same, package = _shipped(found.name) is found, OWN
    elif points:
        same, package = _installed(found.name, points) is found, _package(points[0])
    else:
        return found
    if not same:
        allowed = f"a name of its own for {path}: that one belongs to {package}"
        raise InvalidValue("name", found.name, allowed)
    return found


def find(name: str) -> type[Backend]:
    """The class behind a name or a path `package.module:Class`.

    A name of this package always means this package's method.

    Raises:
        InvalidValue: nothing of that name, it cannot be imported, it is no Backend, or its name
            stands for another method too.
    """
    if ":" in name:
        return _at(name)
    if name in _own():
        return _shipped(name)
    foreign = _foreign()
    if name in foreign:
        return _installed(name, foreign[name])
    choices = names()
    allowed = "one of " + ", ".join(choices) + ", or package.module:Class"
    raise InvalidValue("backend", name, allowed, choices)


def parameters(found: type[Backend]) -> tuple[Parameter, ...]:
    """What a method can be given."""
    made = []
    for f in dataclasses.fields(found):  # type: ignore[arg-type]
        if not f.init:
            continue
        default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        required = default is dataclasses.MISSING
        made.append(Parameter(f.name, required, None if required else default))
    return tuple(made)


def get(name: str, **params: Any) -> Backend:
    """A method by name or import path, with parameters.

    Raises:
        InvalidValue: unknown name, unknown or missing parameter, or a value it refuses.
    """
    found = find(name)
    declared = parameters(found)
    choices = [p.name for p in declared]
    for key in params:
        if key not in choices:
            allowed = f"a parameter of {name}: " + (", ".join(choices) or "it has none")
            raise InvalidValue("parameter", key, allowed, choices)
    for p in declared:
        if p.required and p.name not in params:
            raise InvalidValue(p.name, None, f"a value: {name} has no default for it")
    return found(**params)


def known() -> tuple[Known, ...]:
    """Every name with its package and parameters, sorted; what cannot be used says why."""
    own = set(_own())
    made = []
    for name in own:
        found = _shipped(name)
        made.append(Known(name, OWN, found.source, parameters(found)))
    for name, points in _foreign().items():
        for point in points:
            made.append(_listed(name, point, points, taken=name in own))
    return tuple(sorted(made, key=lambda k: (k.name, k.package != OWN, k.package)))


def _listed(name: str, point: EntryPoint, points: list[EntryPoint], taken: bool) -> Known:
    package = _package(point)
    if taken:
        return Known(name, package, error=f"the name belongs to {OWN}, whose method it means")
    try:
        found = _installed(name, points)
    except InvalidValue as error:
        return Known(name, package, error=f"expected {error.allowed}")
    return Known(name, package, found.source, parameters(found))


def describe() -> dict[str, str]:
    """Each name with the one line that says where the method comes from, or what is wrong."""
    found: dict[str, str] = {}
    for k in known():
        found.setdefault(k.name, k.source if k.error is None else f"broken: {k.error}")
    return found
