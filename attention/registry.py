"""Classes by name, by import path, and from other packages' entry points.

One registry a kind: methods here, detectors, penalties and codecs in `lil`. What a project's own
folders hold is read on demand, so adding one touches no table.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import itertools
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import EntryPoint, distributions
from typing import Any, Generic, TypeVar

from attention import local_modules
from attention.errors import InvalidValue
from attention.local_modules import import_typed
from attention.spec import Spec, merge, parse

#: The distribution this project's own classes come from.
OWN = "lil-attention"

# A name is used in lists (a,b) and in dotted keys (backend_params.a.page), so it has neither.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

#: Import paths that may be followed; None for all.
_FOLLOWED: ContextVar[frozenset[str] | None] = ContextVar("followed", default=None)

T = TypeVar("T")


@contextlib.contextmanager
def following(paths: Collection[str]) -> Iterator[None]:
    """While names that nobody typed are read, as those of a store: no import path but these."""
    outer = _FOLLOWED.get()
    now = _FOLLOWED.set(frozenset(paths) if outer is None else outer & frozenset(paths))
    try:
        yield
    finally:
        _FOLLOWED.reset(now)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a class; `default` is None where it is `required`."""

    name: str
    required: bool
    default: Any

    def __str__(self) -> str:
        return self.name if self.required else f"{self.name}={self.default!r}"


@dataclass(frozen=True)
class Entry:
    """A name and its class.

    Attributes:
        package: the distribution it comes from, with its version where it is another one.
        source: one line saying what it is or where it comes from; empty where there is an error.
        parameters: in the order the class declares them.
        error: why the name cannot be used, or None.
    """

    name: str
    package: str
    source: str = ""
    parameters: tuple[Parameter, ...] = ()
    error: str | None = None

    @property
    def line(self) -> str:
        """The line that describes it, or what is wrong."""
        return self.source if self.error is None else f"broken: {self.error}"


def parameters(kind: type) -> tuple[Parameter, ...]:
    """What a class can be given: the fields of a dataclass, nothing else."""
    missing, result = dataclasses.MISSING, []
    for f in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        default = f.default if f.default_factory is missing else f.default_factory()
        required = default is missing
        if f.init:
            result.append(Parameter(f.name, required, None if required else default))
    return tuple(result)


class Registry(Generic[T]):
    """The classes of one kind that can be named.

    Args:
        kind: of what, for messages, such as "backend".
        packages: this project's folders of them, one file a class, named as the class's `name`;
            `base` and files that begin with an underscore are no classes.
        group: entry points of other packages.
        base: gives the class that all are subclasses of; called when the first is looked at.
        actions: names that may follow a name and a colon.
        frozen: whether they are parameters alone, i.e. frozen dataclasses.
        line: the class attribute with the line that describes one; the docstring's first if None.
    """

    def __init__(
        self,
        kind: str,
        packages: Sequence[str],
        group: str,
        base: Callable[[], type[T]],
        *,
        example: str = "NAME",
        actions: Collection[str] = (),
        frozen: bool = True,
        line: str | None = None,
    ) -> None:
        self.kind, self._group = kind, group
        self._example, self._actions = example, actions
        self._packages, self._base, self._frozen, self._line = packages, base, frozen, line

    def names(self) -> list[str]:
        """Every name, those of other packages' entry points included, sorted."""
        return sorted({*self._own(), *self._foreign()})

    def shipped(self) -> list[str]:
        """The names that ship, sorted."""
        return sorted(self._own())

    def find(self, name: str) -> type[T]:
        """The class behind a name, by which this project's come first, or `package.module:Class`.

        Raises:
            InvalidValue: nothing of that name, it cannot be imported, it is not of this kind, or
                its name is another class's too.
        """
        if isinstance(name, str) and ":" in name:
            return self._at(name)
        if name in (own := self._own()):
            return self._shipped(own[name])
        if name in (foreign := self._foreign()):  # read only where needed: it looks at all packages
            return self._installed(name, foreign[name])
        choices = self.names()
        allowed = f"one of {', '.join(choices)}, or package.module:Class"
        raise InvalidValue(self.kind, name, allowed, choices)

    def get(self, /, name: str, **params: Any) -> T:
        """An object by name or import path, with parameters, which go over those in the name.

        A name may have parameters in brackets and, of a detector, the action behind a colon.

        Raises:
            InvalidValue: unknown name, unknown or missing parameter, or values that the class
                refuses, be it by a plain ValueError.
        """
        if isinstance(name, str) and ("(" in name or name.rpartition(":")[2] in self._actions):
            spec = self.spec(name)
            action = {"on_stop": spec.action} if spec.action else {}
            name, params = spec.name, self.merge(spec.name, spec.params, action, params)
        kind = self.find(name)
        declared = {p.name: p for p in parameters(kind)}
        for key in (key for key in params if key not in declared):
            allowed = f"a parameter of {name}: {', '.join(declared) or 'it has none'}"
            raise InvalidValue("parameter", key, allowed, declared)
        for key, parameter in declared.items():
            if parameter.required and key not in params:
                raise InvalidValue(key, None, f"a value: {name} has no default for it")
        try:
            return kind(**params)
        except InvalidValue:
            raise
        except ValueError as error:  # of a class that somebody else wrote
            allowed = f"parameters that {kind.__name__} takes ({error})"
            raise InvalidValue(self.kind, str(Spec(name, params)), allowed) from error

    def spec(self, text: str, field: str | None = None) -> Spec:
        """What somebody asks for who types `NAME(PARAMETER=VALUE)`, see `attention.spec`."""
        shipped = self._own() if self._actions else ()
        return parse(text, field or self.kind, self._example, self._actions, shipped)

    def merge(self, name: str, *tables: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of `name` in several places, the later over the earlier."""
        aliases = getattr(self.find(name), "aliases", ())
        return functools.reduce(lambda params, own: merge(params, own, aliases), tables, {})

    def known(self) -> tuple[Entry, ...]:
        """Every name with its package and parameters, sorted; what cannot be used says why."""
        own = self._own()
        entries = [self._entry(name, OWN, self._shipped(module)) for name, module in own.items()]
        for name, points in self._foreign().items():
            for package in map(_package, points):
                try:
                    if name in own:
                        raise InvalidValue(self.kind, name, f"another name: it belongs to {OWN}")
                    entries.append(self._entry(name, package, self._installed(name, points)))
                except InvalidValue as refusal:
                    entries.append(Entry(name, package, error=f"expected {refusal.allowed}"))
        return tuple(sorted(entries, key=lambda e: (e.name, e.package != OWN, e.package)))

    # Where classes come from

    def _own(self) -> dict[str, str]:
        """This project's modules, by name, as its folders hold them now."""
        return {
            m.name: f"{package}.{m.name}"
            for package in self._packages
            for m in pkgutil.iter_modules(importlib.import_module(package).__path__)
            if m.name != "base" and m.name[0] != "_" and f"{package}.{m.name}" not in self._packages
        }

    def _foreign(self) -> dict[str, list[EntryPoint]]:
        """Entry points of installed packages by name; a name should have one."""
        packages: dict[str, Collection[EntryPoint]] = {}
        for dist in distributions(path=[place for place in sys.path if place]):
            if own := dist.entry_points.select(group=self._group):
                packages.setdefault(dist.name, own)  # the first of a name hides the others
        points: dict[str, list[EntryPoint]] = {}
        for point in itertools.chain(*packages.values()):
            points.setdefault(point.name, []).append(point)
        return points

    def _shipped(self, module: str) -> type[T]:
        name = module.rpartition(".")[2]
        members = vars(importlib.import_module(module)).values()
        return next(c for c in members if isinstance(c, type) and vars(c).get("name") == name)

    def _installed(self, name: str, points: list[EntryPoint]) -> type[T]:
        """The class behind the entry points of one name."""
        if len(points) > 1:
            who = " and ".join(sorted(map(_package, points)))
            allowed = f"one package of that name, not {who}: uninstall one"
            raise InvalidValue(self.kind, name, allowed)
        (point,) = points
        source = f"{point.value} of {_package(point)}"
        kind = self._checked(point.load, name, f"{source} to import")
        own: str = kind.name  # type: ignore[attr-defined]
        if own != name:  # results are stored under the class's name
            allowed = f"the name of {source}, which calls itself {own!r}"
            raise InvalidValue(self.kind, name, allowed)
        return kind

    def _at(self, path: str) -> type[T]:
        """The class at `package.module:Class`, if its name is not another one's."""
        followed, foreign = _FOLLOWED.get(), self._foreign()
        known = (point.value for points in foreign.values() for point in points)
        if followed is not None and path not in followed and path not in known:
            allowed = f"a {self.kind}'s name: no import path is followed that nobody typed"
            raise InvalidValue(self.kind, path, allowed)
        module, _, attribute = path.partition(":")
        allowed = "an importable package.module:Class"
        kind = self._checked(lambda: getattr(import_typed(module), attribute), path, allowed)
        # Results are stored under the name: two classes must not share one.
        name: str = kind.name  # type: ignore[attr-defined]
        points = [] if (ships := name in self._own()) else foreign.get(name, [])
        if (ships or points) and self.find(name) is not kind:
            package = OWN if ships else _package(points[0])
            allowed = f"a name of its own for {path}: that one belongs to {package}"
            raise InvalidValue("name", name, allowed)
        return kind

    def _checked(self, load: Callable[[], Any], name: str, allowed: str) -> type[T]:
        """What is loaded, if a name can stand for it."""
        try:
            kind = load()
        except Exception as error:  # another's module may do anything when it is imported
            raise InvalidValue(self.kind, name, f"{allowed} ({_cause(error)})") from error
        base = self._base()
        if not (isinstance(kind, type) and issubclass(kind, base)):
            public = f"{base.__module__.partition('.')[0]}.{base.__name__}"
            raise InvalidValue(self.kind, name, f"a subclass of {public}")
        # The base may be a dataclass itself; what a class adds to it must be declared as one too.
        own = [vars(c).get("__dataclass_params__") for c in kind.__mro__ if c is not base]
        if self._frozen and not next((x.frozen for x in own if x), False):
            raise InvalidValue(self.kind, name, "a frozen dataclass, @dataclass(frozen=True)")
        declared = getattr(kind, "name", None)
        if not isinstance(declared, str) or not _NAME.fullmatch(declared):
            allowed = f"a class variable `name` of {kind.__name__}: letters, digits, _ and -"
            raise InvalidValue("name", declared, allowed)
        if self._line is not None and not isinstance(getattr(kind, self._line, None), str):
            allowed = f"a class variable `{self._line}` of {kind.__name__}: a line"
            raise InvalidValue(self._line, None, allowed)
        return kind

    def _entry(self, name: str, package: str, kind: type[T]) -> Entry:
        doc = (inspect.getdoc(kind) or "").partition("\n")[0]
        source = doc if self._line is None else str(getattr(kind, self._line))
        return Entry(name, package, source, parameters(kind))


def _package(point: EntryPoint) -> str:
    dist = point.dist
    return "an unnamed package" if dist is None else f"{dist.name} {dist.version}"


def _cause(error: Exception) -> str:
    """What went wrong and in which line of whose file, in one line."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    frames = traceback.extract_tb(error.__traceback__)
    ours = (__file__, local_modules.__file__)
    outside = [f for f in frames if f.filename not in ours and "importlib" not in f.filename]
    return f"{text} ({outside[-1].filename}, line {outside[-1].lineno})" if outside else text
