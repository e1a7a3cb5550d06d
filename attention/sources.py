"""The sources of a class that does not ship, as a digest.

They are read and never run: the class's module, its bases' modules, and what these import of the
same folder or package.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import secrets
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

#: Packages whose classes ship: their version number identifies their code.
SHIPPED = frozenset({"attention", "lil", "experiments"})

_INSTALLED = frozenset({"site-packages", "dist-packages"})


def ships(kind: type) -> bool:
    """Whether a class is this project's own."""
    return _top(kind.__module__) in SHIPPED


def import_path(kind: type) -> str:
    """A class as `package.module:Class`."""
    return f"{kind.__module__}:{kind.__qualname__}"


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
