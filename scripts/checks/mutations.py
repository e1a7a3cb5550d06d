"""Whether tests go red where the code is broken: applies each mutation of a list and runs its test.

    python scripts/checks/mutations.py                        # those of docs/properties.md
    python scripts/checks/mutations.py --only test_quest.py   # some of them
    python scripts/checks/mutations.py OTHER.toml

A mutation is a test, what is broken in words, and edits: in a file a text that stands there once,
and what takes its place. Tests run one at a time, on a copy of the tree without the compiled
engine, so that what is broken in Python is what runs; `slow` ones run their slow cases. Prints a
line for each; exit code 1 if a test stays green, and 2 if one fails without any mutation.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_suffix(".toml")
#: What tests read of the tree.
PARTS = (
    "attention",
    "docs",
    "experiments",
    "lil",
    "scripts",
    "tests",
    "pyproject.toml",
    "README.md",
)
PASSED, FAILED = 0, 1  # exit codes of pytest


@dataclass(frozen=True)
class Edit:
    """A text that stands once in a file, and what takes its place."""

    file: str
    old: str
    new: str

    def apply(self, root: Path) -> None:
        """Put the new text in its place.

        Raises:
            ValueError: the old text does not stand there once.
        """
        path = root / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.file}: stands there {text.count(self.old)} times: {self.old!r}"
            )
        path.write_text(text.replace(self.old, self.new))


@dataclass(frozen=True)
class Mutation:
    """One way in which the code is broken.

    Attributes:
        test: what is to go red, as pytest names it.
        says: what is broken, in words.
        edits: applied one after the other.
        slow: whether only the slow cases of the test show it.
    """

    test: str
    says: str
    edits: tuple[Edit, ...]
    slow: bool = False


def mutations(path: Path = LIST) -> list[Mutation]:
    """Those of a TOML file, in its order."""
    read: list[dict[str, Any]] = tomllib.loads(path.read_text())["mutation"]
    return [
        Mutation(
            test=one["test"],
            says=one["says"],
            edits=tuple(Edit(**edit) for edit in one["edit"]),
            slow=one.get("slow", False),
        )
        for one in read
    ]


def copy_tree(into: Path) -> None:
    """What tests read, without the compiled engine."""
    leave = shutil.ignore_patterns("*.so", "__pycache__", ".*")
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, into / part, ignore=leave)
        else:
            shutil.copy(source, into / part)


def run(root: Path, tests: Sequence[str], slow: bool) -> int:
    """The exit code of pytest for these tests, as the tree stands."""
    mark = "slow" if slow else "not slow"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", mark]
    command += ["--hypothesis-profile=unshrunk", "--tb=no", *tests]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.setdefault("OMP_NUM_THREADS", "1")
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    if done.returncode not in (PASSED, FAILED):
        raise RuntimeError(f"{tests}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode


def goes_red(root: Path, mutation: Mutation) -> bool:
    """Whether the test fails while the code is broken; the tree is whole again afterwards."""
    files = {edit.file: (root / edit.file).read_text() for edit in mutation.edits}
    try:
        for edit in mutation.edits:
            edit.apply(root)
        return run(root, [mutation.test], mutation.slow) == FAILED
    finally:
        for file, text in files.items():
            (root / file).write_text(text)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("list", type=Path, nargs="?", default=LIST, help="a list in TOML")
    parser.add_argument("--only", default="", help="those whose test or words contain this text")
    given = parser.parse_args(argv)
    wanted = [x for x in mutations(given.list) if given.only in f"{x.test} {x.says}"]
    if not wanted:
        parser.error(f"no mutation contains {given.only!r}")
    green = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        copy_tree(root)
        for slow in (False, True):
            tests = sorted({x.test for x in wanted if x.slow == slow})
            if tests and run(root, tests, slow) != PASSED:
                parser.error("some of these tests fail as the code stands")
        for mutation in wanted:
            start = time.monotonic()
            red = goes_red(root, mutation)
            green += not red
            took = f"{time.monotonic() - start:4.0f} s"
            print("red  " if red else "GREEN", took, mutation.test, mutation.says, flush=True)
    print(f"{len(wanted)} mutations, {green} of them not seen")
    return bool(green)


if __name__ == "__main__":
    sys.exit(main())
