"""Classes of a user who edits them between two commands, each in files of their own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

#: A detector that stops at a number of tokens: its class's, its module's and its file's, added up.
DETECTOR = '''
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lil import Detector, Verdict, Watcher
from own_limit import LIMIT


@dataclass(frozen=True)
class Own(Detector):
    """Stops at a number of tokens."""

    name: ClassVar[str] = "own"
    weights: str = "own.txt"

    def watch(self, prompt=b""):
        return Count(self)

    def limit(self):
        return {own} + LIMIT + int(Path(self.weights).read_text())


class Count(Watcher):
    def push(self, piece):
        if self.tokens < self.detector.limit():
            return None
        return Verdict("own", self.tokens, {{"step": self.tokens}})
'''

#: A method that evicts keys by their norm, with a sign from wherever the text says.
METHOD = '''
from dataclasses import dataclass
from typing import ClassVar

from method_base import NormLayer

from attention.contract import Backend


class Layer(NormLayer):
    own = {own}


@dataclass(frozen=True, kw_only=True)
class Norm(Backend):
    """Keeps the keys of the largest or the smallest norm."""

    name: ClassVar[str] = "norm"
    source: ClassVar[str] = "a test"
    least_budget: ClassVar[int] = 2
    layer_class = Layer
    budget: int
    signs: str = "signs.txt"
'''

METHOD_BASE = """
from pathlib import Path

import torch

from attention.contract import Evicting


class NormLayer(Evicting):
    own = 1

    def __init__(self, geometry, backend):
        super().__init__(geometry, backend)
        self.sign = self.own * {base} * int(Path(backend.signs).read_text())

    def worth(self, S, step):
        return self.sign * torch.linalg.vector_norm(self.k.data[:, :, :S].float(), dim=-1)
"""

DETECTOR_FILES: Mapping[str, tuple[str, str]] = {
    "own": ("own.py", DETECTOR),
    "limit": ("own_limit.py", "LIMIT = {limit}\n"),
    "file": ("own.txt", "{file}"),
}
METHOD_FILES: Mapping[str, tuple[str, str]] = {
    "own": ("method.py", METHOD),
    "base": ("method_base.py", METHOD_BASE),
    "file": ("signs.txt", "{file}"),
}


class Folder:
    """The folder that commands are run in, whose modules are imported anew after an edit."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        monkeypatch.chdir(path)
        monkeypatch.syspath_prepend(path)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it is not renewed within a second

    def write(self, name: str, text: str) -> None:
        """Write a file and forget modules of the folder's names, of earlier folders too."""
        (self.path / name).write_text(text)
        for file in self.path.glob("*.py"):
            sys.modules.pop(file.stem, None)
        importlib.invalidate_caches()

    def put(self, files: Mapping[str, tuple[str, str]], numbers: Mapping[str, int]) -> None:
        """Write all files of a class with their numbers."""
        for key, (name, text) in files.items():
            self.write(name, text.format(**{key: numbers[key]}))
