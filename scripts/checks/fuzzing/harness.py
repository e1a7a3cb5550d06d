"""One command in this process: how it ended, what it left, and where a fault of ours is."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

PACKAGES = ("attention", "lil", "experiments")
ROOT = Path(__file__).parents[3]

#: Processor seconds after which a command hangs; a busy machine is no hang.
PATIENCE = 20.0


#: What no text of a model, a problem or a name may do to a terminal.
STEERING = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Reached(BaseException):
    """A model would be loaded now: the input was good, or bad in ways that only decoding shows."""


class Hung(BaseException):
    """The alarm went off."""


@dataclass
class Findings:
    """What was found; inputs by the place of the fault, the shortest kept."""

    inputs: int = 0
    refused: int = 0
    reached: int = 0
    done: int = 0
    faults: dict[str, tuple[int, str]] = field(default_factory=dict)

    def fault(self, place: str, shown: str) -> None:
        """Count a fault and keep its shortest input."""
        count, shortest = self.faults.get(place, (0, shown))
        self.faults[place] = (count + 1, min(shown, shortest, key=len))


def tried(
    findings: Findings, folder: Path, argv: Sequence[str], shown: str, may_write: bool = False
) -> None:
    """Run one command in a folder and judge how it ended.

    Args:
        findings: where it is counted.
        folder: the working folder, which a refused command leaves as it was.
        argv: the command.
        shown: the input as a finding names it.
        may_write: whether what a refused command leaves is no fault (a full store was there).
    """
    from experiments.cli import main

    findings.inputs += 1
    before = _listing(folder)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), _alarm():
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = main(list(argv))
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except Reached:
            findings.reached += 1
            return
        except Hung:
            findings.fault("hang", shown)
            return
        except Exception as error:
            findings.fault(_place(error), shown)
            return
    if fault := said(argv, out.getvalue(), err.getvalue()):
        findings.fault(fault, shown)
    if code == 0:
        findings.done += 1
        return
    if code != 2:
        findings.fault(f"exit code {code}", shown)
        return
    findings.refused += 1
    messages = [line for line in err.getvalue().splitlines() if line.startswith("lil: error")]
    helped = not messages and err.getvalue().startswith("usage: lil")  # nothing was asked for
    if len(messages) != 1 and not helped:
        findings.fault(f"exit code 2 with {len(messages)} messages", shown)
    if not may_write and (left := sorted(set(_listing(folder)) - set(before))):
        findings.fault(f"left behind: {', '.join(left)[:80]}", shown)


def said(argv: Sequence[str], out: str, err: str) -> str | None:
    """What is wrong with what was printed, however a command ended."""
    if "Traceback (most" in err:
        return "a traceback printed"
    if steering := STEERING.search(out + err):
        return f"{steering[0]!r} printed"
    if "--json" in argv and out:
        try:
            json.loads(out)
        except ValueError:
            return "--json with something else than one document"
    return None


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    def ring(_number: int, _frame: object) -> NoReturn:
        raise Hung

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _place(error: Exception) -> str:
    """The kind of an exception and the last line of ours it came through."""
    ours = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(ROOT)
        and Path(frame.filename).relative_to(ROOT).parts[0] in PACKAGES
    ]
    where = ours[-1] if ours else traceback.extract_tb(error.__traceback__)[-1]
    path = Path(where.filename)
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return f"{type(error).__name__} {name}:{where.lineno} {where.name}"


def _listing(folder: Path) -> list[str]:
    return [
        os.path.relpath(os.path.join(where, name), folder)
        for where, folders, files in os.walk(folder)
        if os.path.basename(where) != "cache"  # spares time and is nothing else
        for name in (*folders, *files)
        if name not in ("cache", "__pycache__")
    ]


@contextlib.contextmanager
def _in_place_of(places: Sequence[tuple[object, str, object]]) -> Iterator[None]:
    """Owners have other attributes of these names in here."""
    with contextlib.ExitStack() as stack:
        for owner, name, other in places:
            stack.enter_context(mock.patch.object(owner, name, other))
        yield


@contextlib.contextmanager
def nothing_decoded() -> Iterator[None]:
    """No model is loaded, no hub asked, nothing timed; every check before that is the real one."""
    import torch

    from experiments import bench
    from experiments.cli.nouns import eval as handed_on
    from experiments.grid import models
    from experiments.grid.config import Config
    from experiments.grid.data import rows
    from experiments.report import bootstrap, measures
    from experiments.sweep import sweep

    def reached(*_: Any, **__: Any) -> NoReturn:
        raise Reached

    def known(name: str, *more: Any, **named: Any) -> models.ModelSource:
        if name != models.REASONER:
            return found(name, *more, **named)
        return models.ModelSource(name, "/nowhere", None, "0" * 32)

    def prepared(config: Config, out: Path, again: bool = False) -> NoReturn:
        try:
            prepare(config, out, again=again)
        except Reached:
            json.dumps(config.to_dict(), allow_nan=False)  # as the manifest is written next
            raise
        raise AssertionError("a sweep was prepared without its tokenizer")

    found, prepare = models.find, sweep.prepare
    places: list[tuple[object, str, object]] = [
        (models, "find", known),
        (models, "load", reached),
        (models, "_hub", reached),
        # As torch: a number of threads has 32 bits.
        (torch, "set_num_threads", lambda threads: threads.to_bytes(4, "little", signed=True)),
        (sweep, "prepare", prepared),
        (models, "load_tokenizer", reached),
        (rows, "hub_rows", reached),
        (handed_on, "_evaluate", reached),  # another program answers for the rest
        (bench, "filled", reached),
        # What is asked is whether there are intervals, not where they lie.
        (measures, "Bootstrap", partial(bootstrap.Bootstrap, resamples=20)),
    ]
    with _in_place_of(places):
        yield


@contextlib.contextmanager
def loaded_once() -> Iterator[None]:
    """Models are loaded and really decode; each is kept, and nothing is asked of a hub."""
    import torch

    from experiments import bench
    from experiments.grid import models
    from experiments.grid.data import rows
    from experiments.report import bootstrap, measures

    def reached(*_: Any, **__: Any) -> NoReturn:
        raise Reached

    kept: dict[tuple[Any, ...], models.LoadedModel] = {}
    load = models.load

    def loaded(source: models.ModelSource, *asked: Any) -> models.LoadedModel:
        key = (source, *asked)
        if key not in kept:
            kept[key] = load(source, *asked)
        return kept[key]

    places: list[tuple[object, str, object]] = [
        (models, "load", loaded),
        (models, "_hub", reached),
        (torch, "set_num_threads", lambda threads: threads.to_bytes(4, "little", signed=True)),
        (rows, "hub_rows", reached),
        (bench, "filled", reached),
        (measures, "Bootstrap", partial(bootstrap.Bootstrap, resamples=20)),
    ]
    with _in_place_of(places):
        yield
