"""Classes of a researcher who edits them between two commands, each in files of their own."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from experiments.cli import main

#: A detector that stops at a number of tokens: that of its class, of its base, of a module that it
#: imports and of a file that it reads, added up.
OWN = '''
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lil import Verdict, Watcher
from own_base import Base
from own_limit import LIMIT


@dataclass(frozen=True)
class Own(Base):
    """Stops at a number of tokens."""

    name: ClassVar[str] = "own"
    weights: str = "own.txt"

    def watch(self, prompt=b""):
        return Count(self)

    def limit(self):
        return {own} + self.base() + LIMIT + int(Path(self.weights).read_text())


class Count(Watcher):
    def __init__(self, detector):
        super().__init__(detector)
        self.limit = detector.limit()

    def push(self, piece):
        if self.tokens < self.limit:
            return None
        return Verdict("own", self.tokens, {{"step": self.tokens}})
'''

BASE = """
from dataclasses import dataclass

from lil import Detector


@dataclass(frozen=True)
class Base(Detector):
    def base(self):
        return {base}
"""

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
from method_sign import SIGN

from attention.contract import Evicting


class NormLayer(Evicting):
    own = 1

    def __init__(self, geometry, backend):
        super().__init__(geometry, backend)
        self.sign = self.own * {base} * SIGN * int(Path(backend.signs).read_text())

    def worth(self, S, step):
        return self.sign * torch.linalg.vector_norm(self.k.data[:, :, :S].float(), dim=-1)
"""

DETECTOR_FILES: Mapping[str, tuple[str, str]] = {
    "own": ("own.py", OWN),
    "base": ("own_base.py", BASE),
    "limit": ("own_limit.py", "LIMIT = {limit}\n"),
    "file": ("own.txt", "{file}"),
}
METHOD_FILES: Mapping[str, tuple[str, str]] = {
    "own": ("method.py", METHOD),
    "base": ("method_base.py", METHOD_BASE),
    "limit": ("method_sign.py", "SIGN = {limit}\n"),
    "file": ("signs.txt", "{file}"),
}


class Folder:
    """Where the commands are run.

    Args:
        path: of it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, text: str) -> None:
        """Write a file; what was imported from here is imported again."""
        (self.path / name).write_text(text)
        for module, found in list(sys.modules.items()):
            file = getattr(found, "__file__", None)
            if file is not None and Path(file).parent == self.path:
                del sys.modules[module]
        importlib.invalidate_caches()

    def put(self, files: Mapping[str, tuple[str, str]], numbers: Mapping[str, int]) -> None:
        """Write all files of a class with their numbers."""
        for key, (name, text) in files.items():
            self.write(name, text.format(**{key: numbers[key]}))


def in_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """The folder commands are run in from now on, whose modules are imported anew after an edit."""
    path.mkdir(exist_ok=True)
    monkeypatch.chdir(path)
    monkeypatch.syspath_prepend(path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # which is not noticed within a second
    for name, _ in (*DETECTOR_FILES.values(), *METHOD_FILES.values()):
        monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
    return Folder(path)


def endless(tiny_model: Path, folder: Path) -> Path:
    """A copy of the tiny model that hardly ever ends by itself."""
    shutil.copytree(tiny_model, folder)
    weights = load_file(folder / "model.safetensors")
    eos = json.loads((folder / "config.json").read_text())["eos_token_id"]
    weights["lm_head.weight"][eos] = 0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def document(capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a command and gives what it printed."""

    def run(*arguments: str) -> Any:
        capfd.readouterr()
        code = main([*arguments, "--json"])
        printed, said = capfd.readouterr()
        assert code == 0, said
        return json.loads(printed)

    return run


def refused(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that is refused and gives the one line it said."""

    def run(*arguments: str) -> str:
        capfd.readouterr()
        assert main(list(arguments)) == 2
        printed, said = capfd.readouterr()
        assert printed == ""
        (line,) = [line for line in said.splitlines() if line.startswith("lil: error")]
        return line

    return run
