"""SIGTERM and SIGHUP: a command ends by itself, says one line, and can be started again."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Sequence
from pathlib import Path

from experiments.store.store import Store
from killing.readers import READERS, forget, left_hidden, what_was_decoded
from killing.sweeps import comparable, end_after, finish, start, sweep

HOW = (signal.SIGTERM, signal.SIGHUP)


def end_politely(
    folder: Path, whole: Path, command: str, arguments: Sequence[str], rng: random.Random
) -> bool:
    """Send both signals to a command at work; whether it ended as it should."""
    good = True
    for how in HOW:
        out = folder / f"{command}-{how.name}"
        out.mkdir()
        before = what_was_decoded(whole)
        for quicker in range(6):
            if command == "sweep":
                process = sweep(out, arguments)
            else:
                forget(whole)
                process = start(*READERS[command](whole, out))
            # Long enough after the start for the command itself to be at work.
            if end_after(process, rng.uniform(0.3, 1.5) / 2**quicker, how):
                break
        else:
            print(f"{command}, {how.name}: had ended by itself")
            continue
        printed, said = process.communicate()
        lines = [line for line in said.splitlines() if line.startswith("lil: interrupted")]
        hidden = left_hidden(out)
        right = (process.returncode, printed, len(lines), hidden) == (130, "", 1, [])
        right &= "Traceback" not in said and what_was_decoded(whole) == before
        print(
            f"{command}, {how.name}: exit code {process.returncode}, {len(lines)} message, "
            f"{len(hidden)} hidden files",
            flush=True,
        )
        if command == "sweep":
            for path in out.glob("sweeps/*.json"):
                status = json.loads(path.read_text())["status"]
                print(f"  status {status}, {len(Store(out))} runs stored")
                right &= status == "interrupted"
            again, _ = finish(out, arguments)
            expected, _ = finish(whole, arguments)
            right &= comparable(again) == comparable(expected)
        if not right:
            print(f"  NOT as it should be:\n{printed[:500]}{said[-2000:]}")
        good &= right
    return good
