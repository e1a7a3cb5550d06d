"""The code of classes that do not ship, as digests: it may change under the same identity.

Sources are read and never run: the class's module, its bases' modules, and what these import of the
same folder or package; and the files that parameters name.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import secrets
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attention.identity import SHIPPED, import_path, ships
from attention.spec import IMPORT_PATH

_INSTALLED = frozenset({"site-packages", "dist-packages"})


def code(*things: Any) -> dict[str, str]:
    """Digests of what may change under the same identity; none for what ships.

    Args:
        things: methods, detectors, penalties and codecs, or classes of them. What they are made of
            counts too: what their attribute `uses` holds, and classes that parameters name.

    Returns:
        By import path the sources of each class that does not ship; by name as it is given, each
        file that a parameter of such a class names.
    """
    digests: dict[str, str] = {}
    for thing in things:
        kind = thing if isinstance(thing, type) else type(thing)
        values = [] if isinstance(thing, type) else list(_texts(_values(thing)))
        if not ships(kind):
            digests[import_path(kind)] = source_digest(kind)
            digests |= {name: digest for name in values if (digest := _file_digest(name))}
        classes = [kind_named for kind_named in map(_imported, values) if kind_named is not None]
        inside = () if isinstance(thing, type) else getattr(thing, "uses", ())
        digests |= code(*classes, *inside)
    return digests


def _values(thing: Any) -> list[Any]:
    fields = dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ()
    own = [getattr(thing, parameter.name) for parameter in fields if parameter.init]
    return [*own, thing.params()] if hasattr(thing, "params") else own


def _texts(value: Any) -> Iterator[str]:
    """Every text and path in a parameter, however deep."""
    if isinstance(value, (str, Path)):
        yield str(value)
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _texts(item)


def _file_digest(name: str) -> str | None:
    """What a file holds, if there is one of this name."""
    try:
        path = Path(name).expanduser()
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except (OSError, ValueError, RuntimeError):  # a text that no file can be called
        return None


def _imported(text: str) -> type | None:
    """The class at an import path that has been imported; looking for it imports nothing."""
    if not IMPORT_PATH.fullmatch(text):
        return None
    module, _, attribute = text.partition(":")
    kind = getattr(sys.modules.get(module), attribute, None)
    return kind if isinstance(kind, type) and not ships(kind) else None


@functools.cache
def source_digest(kind: type) -> str:
    """A digest of the sources behind a class, which is another one after an edit of any of them.

    One without a file, as those of a session at a prompt, has a digest that no other process gives.
    """
    files = _files(kind)
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\n{hashlib.sha256(files[name].read_bytes()).hexdigest()}\n".encode())
    if kind.__module__ not in files:
        digest.update(secrets.token_bytes(16))
    return digest.hexdigest()[:32]


def _files(kind: type) -> dict[str, Path]:
    """The files of a class by the names of their modules, data files by their own names."""
    files: dict[str, Path] = {}
    for base in kind.__mro__:
        if not ships(base) and (file := _file(base.__module__)) is not None:
            ours = any(map(ships, base.__mro__))  # a mixin of torch is no concern of ours
            if ours or not _installed(file):
                _gather(base.__module__, file, files)
    return files


def _gather(name: str, file: Path, files: dict[str, Path]) -> None:
    """Add a module and all that it imports of its own folder or package."""
    waiting = [(name, file)]
    root = _root(name, file)
    while waiting:
        name, file = waiting.pop()
        if name in files:
            continue
        files[name] = file
        if file.suffix != ".py":
            continue
        imported, texts = _named(name, file)
        for other in imported:
            at = _local(other, root, _top(name) if _installed(file) else None)
            if at is not None:
                waiting.append((other, at))
        for text in texts:
            data = file.parent / text
            if data != file and data.is_file():
                files[f"{name}/{text}"] = data


def _named(name: str, file: Path) -> tuple[list[str], list[str]]:
    """Modules that a source may import, and texts in it that could be the names of files."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return [], []  # it was another one when it was imported
    package = name if file.stem == "__init__" else name.rpartition(".")[0]
    modules: list[str] = []
    texts: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            modules += [base, *(f"{base}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if 0 < len(text) < 256 and text.isprintable():
                texts.append(text)
                if all(part.isidentifier() for part in text.split(".")):
                    modules.append(text)  # importlib.import_module("mine_limit")
    every = dict.fromkeys(part for name_of in modules if name_of for part in _prefixes(name_of))
    return list(every), list(dict.fromkeys(texts))


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])


def _local(name: str, root: Path, only: str | None) -> Path | None:
    """The file of a module that is nobody else's; None where there is none."""
    top = _top(name)
    if top in SHIPPED or top in sys.builtin_module_names or only not in (None, top):
        return None
    file = _file(name)
    if file is not None:
        return file if only is not None or not _installed(file) else None
    at = root.joinpath(*name.split("."))
    for candidate in (at.with_name(f"{at.name}.py"), at / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _file(name: str) -> Path | None:
    """Where a module that is imported lies."""
    path = getattr(sys.modules.get(name), "__file__", None)
    if not isinstance(path, str):
        return None
    file = Path(path).absolute()
    return file if file.is_file() else None


def _root(name: str, file: Path) -> Path:
    """The folder that holds a module's top package, or the module itself."""
    folder = file.parent if file.stem == "__init__" else file
    for _ in name.split("."):
        folder = folder.parent
    return folder


def _installed(file: Path) -> bool:
    """Whether it came with Python or was put there by pip."""
    library = Path(sysconfig.get_path("stdlib"))
    return not _INSTALLED.isdisjoint(file.parts) or file.is_relative_to(library)


def _top(name: str) -> str:
    return name.partition(".")[0]
