"""Numbered commands that decode and numbered stores that are damaged, in a folder of their own."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import random
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fuzzing import damage, decoding
from fuzzing.harness import Findings, loaded_once, tried
from fuzzing.inputs import word

#: Commands after which outputs are taken away.
_EVERY = 50


def commands(findings: Findings, folder: Path, seed: int, numbers: range, told: Told) -> None:
    """Try the command lines of these numbers."""
    with _workplace(folder):
        made = decoding.Commands(seed, {noun: _flags(noun) for noun in _NOUNS})
        fixed = _digest(folder)
        for n in numbers:
            argv = made(n)
            for name, text in made.files(n).items():
                if name in argv:
                    (folder / name).write_text(text, encoding="utf-8", errors="surrogatepass")
            shown = f"{n}: lil {' '.join(map(word, argv))}"
            # What a refused sweep has decoded before, or what lies in its folder, stays.
            before = findings.refused
            tried(findings, folder, argv, shown, may_write=argv[:1] in (["sweep"], ["chopper"]))
            if findings.refused > before and (left := _halves(folder)):
                findings.fault(f"left behind: {left}", shown)
            if _digest(folder) != fixed:
                findings.fault("what commands work with has changed", shown)
                decoding.prepare(folder)
                fixed = _digest(folder)
            if n % _EVERY == _EVERY - 1:
                _tidy(folder)
            told(n)


def damaged(
    findings: Findings, folder: Path, seed: int, numbers: range, told: Told, others: list[Path]
) -> None:
    """Damage stores in the ways of these numbers and try a command or two with each."""
    with _workplace(folder):
        for at, other in enumerate(others):
            shutil.copytree(other, folder / f"base{at}", ignore=shutil.ignore_patterns("cache"))
            _quietly(["report", f"base{at}", "--no-figures"], folder)
        bases = [folder / decoding.STORE, *(folder / f"base{at}" for at in range(len(others)))]
        resume = decoding.base_store(folder / "nowhere")
        for n in numbers:
            rng = random.Random(f"{seed}/{n}")
            base = rng.choice((bases[0], *bases))
            place = folder / "d"
            _remove(place)
            shutil.copytree(base, place)
            done = damage.damage(place, rng)
            for _ in range(rng.choice((1, 1, 2))):
                argv = damage.command("d", rng)
                if argv[0] == "sweep":
                    argv = [*resume, *argv[1:], "--out", "d", "--no-page"]
                shown = f"{n} ({base.name}; {done}): lil {' '.join(map(word, argv))}"
                tried(findings, folder, argv, shown, may_write=True)
            told(n)


class Told:
    """Says on stderr how far a campaign is, and writes each new fault to a file at once.

    Args:
        findings: what is found.
        log: lines of JSON, or None.
        total: how many there will be.
    """

    def __init__(self, findings: Findings, log: Path | None, total: int) -> None:
        self._findings, self._log, self._total = findings, log, total
        self._known, self._done, self._started = 0, 0, time.monotonic()

    def __call__(self, n: int) -> None:
        self._done += 1
        faults = sum(count for count, _ in self._findings.faults.values())
        if self._log is not None and faults > self._known:
            with self._log.open("a") as file:
                file.write(json.dumps({"at": n, "faults": self._findings.faults}) + "\n")
        self._known = faults
        if self._done % 200 == 0:
            rate = self._done / (time.monotonic() - self._started)
            line = f"{self._done} of {self._total}, {rate:.1f} a second, {faults} faults, at {n}"
            print(line, file=sys.stderr, flush=True)


_NOUNS = (
    *("sweep", "run", "report", "replay", "calibrate", "curve", "chopper", "list", "bench"),
    "why",
)


def _flags(noun: str) -> dict[str, bool]:
    from experiments.cli.parser import Parser

    def parser() -> Parser:
        made = Parser(prog="lil")
        importlib.import_module(f"experiments.cli.nouns.{noun}").add_arguments(made)
        return made

    return decoding.known_flags(parser)


@contextlib.contextmanager
def _workplace(folder: Path) -> Iterator[None]:
    """A folder with what commands work with, whose methods can be imported."""
    decoding.prepare(folder)
    sys.path.append(str(folder))
    try:
        with loaded_once():
            _quietly(decoding.base_store(folder), folder)
            yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("mine", None)


def _quietly(argv: list[str], folder: Path) -> None:
    from experiments.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv)
    if code != 0:
        raise RuntimeError(f"{argv} ended with {code}: {err.getvalue()[-500:]}")


def _digest(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of what no command may change."""
    names = (decoding.PROBLEMS, decoding.TEMPLATE, decoding.PRESET, "mine.py", "essay.txt")
    paths = [folder / name for name in names] + sorted((folder / decoding.MODEL).iterdir())
    stats = {str(path): path.stat() for path in paths if path.exists()}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def _halves(folder: Path) -> str:
    """Files half written, and folders made to see whether one can be made."""
    found = [p.name for p in folder.rglob(".*") if ".part" in p.name or p.name.startswith(".lil-")]
    return ", ".join(sorted(found))


def _tidy(folder: Path) -> None:
    kept = {decoding.MODEL, decoding.PROBLEMS, decoding.TEMPLATE, decoding.PRESET, decoding.STORE}
    kept |= {"mine.py", "essay.txt", "__pycache__"}
    for path in folder.iterdir():
        if path.name not in kept:
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
