"""Reports and replays, killed: they may write their outputs, and never the store."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from killing.sweeps import end_after, start

#: What reads a store: the arguments for it and a folder for what is written.
READERS: dict[str, Callable[[Path, Path], list[str]]] = {
    "replay": lambda store, _: ["replay", str(store), "--f", "50,100", "--json"],
    "report": lambda store, out: [
        *("report", str(store), "--json"),
        *("--figures", str(out / "figures"), "--csv", str(out / "samples.csv")),
        *("--page", str(out / "page.html")),
    ],
}


#: What is beside traces by design: who writes, and that a cache is none of git's business.
KEPT_HIDDEN = (".writer.lock", ".gitignore")


def fingerprints(folder: Path) -> dict[str, str]:
    """Every file below a folder, by the hash of its content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(_content(path)).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in KEPT_HIDDEN
    }


def _content(path: Path) -> bytes:
    """A file's bytes; matplotlib names clip paths in SVG by where they lie in memory."""
    data = path.read_bytes()
    return re.sub(rb"\bp[0-9a-f]{10}\b", b"p", data) if path.suffix == ".svg" else data


def what_was_decoded(store: Path) -> dict[str, str]:
    """The files of a store that nothing could bring back: traces, and what was asked."""
    ours = ("traces", "sweeps")
    return {name: hash_ for name, hash_ in fingerprints(store).items() if name.startswith(ours)}


def left_hidden(folder: Path) -> list[str]:
    """Hidden files that a run left below a folder."""
    return [path.name for path in folder.rglob(".*") if path.name not in KEPT_HIDDEN]


def finished(command: str, store: Path, out: Path) -> tuple[dict[str, Any], dict[str, str], float]:
    """Run a reader to its end: its document, the files it wrote, and its seconds."""
    out.mkdir(exist_ok=True)
    started = time.monotonic()
    process = start(*READERS[command](store, out))
    printed, said = process.communicate()
    if process.returncode:
        raise SystemExit(f"lil {command} failed with {process.returncode}:\n{said}")
    return json.loads(printed), fingerprints(out), time.monotonic() - started


def forget(store: Path) -> None:
    """Take away what reports keep beside the traces."""
    shutil.rmtree(store / "cache", ignore_errors=True)


def kill_reader(folder: Path, store: Path, command: str, kills: int, rng: random.Random) -> bool:
    """Kill a reader over the time it takes, then let it finish; whether nothing suffered.

    It begins without what earlier ones kept beside the traces, so that there is something to do.
    """
    before = what_was_decoded(store)
    forget(store)
    document, whole, seconds = finished(command, store, folder / f"{command}-whole")
    out = folder / f"{command}-killed"
    out.mkdir()
    done, tries, torn, most_hidden = 0, 0, 0, 0
    while done < kills and tries < 3 * kills:  # one that was quicker this time has ended by itself
        tries += 1
        if rng.random() < 0.8:  # in the others it finds what the last one kept
            forget(store)
        process = start(*READERS[command](store, out))
        if end_after(process, rng.uniform(0.0, 0.95) * seconds, signal.SIGKILL):
            process.communicate()
            done += 1
        left = fingerprints(out)
        torn += len(_torn(left, whole))
        most_hidden = max(most_hidden, len(_hidden(left)))
    again, left, _ = finished(command, store, out)
    hidden = _hidden(left) + left_hidden(store)
    same = again["rows"] == document["rows"] and not _torn(left, whole)
    untouched = what_was_decoded(store) == before
    print(
        f"{command}: {done} of {tries} killed before their end; {torn} torn files, up to "
        f"{most_hidden} hidden files, {len(hidden)} after the next run; output "
        f"{'the same' if same else 'DIFFERS'}, store {'untouched' if untouched else 'CHANGED'}",
        flush=True,
    )
    return done > 0 and not torn and not hidden and same and untouched


def _torn(left: Mapping[str, str], whole: Mapping[str, str]) -> list[str]:
    """Visible files that are not what a whole run writes."""
    return [
        name
        for name, content in left.items()
        if not _is_hidden(name) and (whole.get(name) != content)
    ]


def _hidden(left: Mapping[str, str]) -> list[str]:
    return [name for name in left if _is_hidden(name)]


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in Path(name).parts)
