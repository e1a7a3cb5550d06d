"""The processes that a sweep with several workers is made of."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.store.store import Store
from killing.children import Child
from killing.sweeps import comparable, stored_bytes, sweep, tokens

#: Sweeps started for one kill at most: some end before it falls.
TRIES = 10


def members(group: int) -> dict[int, int]:
    """Living processes of a group, each with its parent."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, of, *_ = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(of) == group and state != "Z":
            found[int(path.parent.name)] = int(parent)
    return found


def workers(driver: Child) -> list[int]:
    """Those forked from the process that has all imported, which is the driver's own child."""
    there = members(driver.id)
    return [pid for pid, parent in there.items() if parent in there and parent != driver.id]


def gone(group: int, within: float = 60.0) -> bool:
    """Whether a group's processes end by themselves."""
    deadline = time.monotonic() + within
    while members(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def kill_workers(
    folder: Path,
    whole: Path,
    expected: Sequence[dict[str, Any]],
    arguments: Sequence[str],
    kills: int,
    rng: random.Random,
) -> bool:
    """Kill workers of sweeps that nothing else happens to; whether these end as one undisturbed.

    One in a sweep: a row whose worker dies twice is stored as failed. A sweep that ended before
    its kill counts as none, and as wrong if it is not as the others.
    """
    done, good = 0, True
    size = stored_bytes(whole)
    for _ in range(TRIES * kills):
        if done == kills:
            break
        out = folder / "workers"
        process = sweep(out, arguments)
        killed = _kill_one(process, out, rng.uniform(0.0, 0.9) * size, rng)
        done += killed
        printed, said = process.communicate()
        store = Store(out)
        twice, lost = store.stored() - len(store), len(Store(whole)) - len(store)
        same = process.returncode == 0 and tokens(out) == tokens(whole)
        same = same and comparable(json.loads(printed)) == list(expected)
        left = not gone(process.id)
        print(
            f"{int(killed)} workers killed in one sweep: {twice} stored twice, {lost} lost, "
            f"rows and tokens {'the same' if same else 'DIFFER'}"
            f"{', processes LEFT' if left else ''}",
            flush=True,
        )
        if not same:
            print(said[-2000:])
        good &= same and not (twice or lost or left)
        shutil.rmtree(out)
    return good and done == kills


def _kill_one(process: Child, out: Path, size: float, rng: random.Random) -> bool:
    """Kill a worker once the store has grown so far; False if the sweep ended before."""
    while process.poll() is None and not (stored_bytes(out) >= size and workers(process)):
        time.sleep(0.01)
    time.sleep(rng.uniform(0.0, 0.3))
    there = workers(process)
    if process.poll() is not None or not there:
        return False
    try:
        os.kill(rng.choice(there), signal.SIGKILL)
    except ProcessLookupError:  # it has ended in this very moment
        return False
    return True
