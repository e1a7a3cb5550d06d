"""Sweeps as processes, and what they leave."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.store.store import Store
from killing.children import Child


def start(*arguments: str) -> Child:
    """Start `lil` in a process of its own."""
    return Child(arguments)


def sweep(out: Path, arguments: Sequence[str]) -> Child:
    """Start `lil sweep`, writing into `out`."""
    return start("sweep", *arguments, "--out", str(out), "--json")


def finish(out: Path, arguments: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Run a sweep to its end: its document and what it said."""
    process = sweep(out, arguments)
    printed, said = process.communicate()
    if process.returncode:
        raise SystemExit(f"the sweep failed with {process.returncode}:\n{said}")
    document: dict[str, Any] = json.loads(printed)
    return document, said


def comparable(document: dict[str, Any]) -> list[dict[str, Any]]:
    """A document's rows without what is measured with a clock."""
    return [
        {key: value for key, value in row.items() if "sec" not in key and "end_to_end" not in key}
        for row in document["rows"]
    ]


def tokens(out: Path) -> dict[str, list[int]]:
    """Generated ids of every run in a store."""
    return {r.id: r.values()["new_ids"] for r in Store(out) if not r.failed}


def stored_bytes(out: Path) -> int:
    """Bytes of all trace files."""
    return sum(path.stat().st_size for path in (out / "traces").glob("*.zst"))


def kill_at(process: Child, out: Path, size: float, delay: float, group: bool = False) -> bool:
    """SIGKILL once the store has grown to `size` and `delay` seconds passed; False if it ended.

    Args:
        process, out: the sweep and its store.
        size: bytes.
        delay: seconds.
        group: kill all that it has started as well.
    """
    while process.poll() is None and stored_bytes(out) < size:
        time.sleep(0.02)
    if not end_after(process, delay, signal.SIGKILL, group):
        return False
    process.communicate()
    return True


def end_after(process: Child, seconds: float, how: signal.Signals, group: bool = False) -> bool:
    """Send a signal after so many seconds, to its group if asked; False if it ended before."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    if process.poll() is not None:
        process.communicate()
        return False
    if group:
        process.send_group(how)
    else:
        process.send_signal(how)
    return True


def damage(out: Path, rng: random.Random) -> int:
    """Cut the largest file's last record short and flip a byte in another; how many suffered."""
    file = max((out / "traces").glob("*.zst"), key=lambda path: path.stat().st_size)
    records = sorted((r for r in Store(out) if r.path == file), key=lambda r: r.offset)
    victim = rng.choice(records[:-1])
    data = bytearray(file.read_bytes())
    data[victim.offset + rng.randrange(victim.length)] ^= 0xFF
    del data[records[-1].offset + records[-1].length // 2 :]
    file.write_bytes(data)
    return 2
