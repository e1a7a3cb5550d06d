"""Kill a sweep at random moments, restart it each time, and compare with one never killed.

    python scripts/kill_test.py                      # ten kills of a demo-small sweep
    python scripts/kill_test.py --kills 3 -- --model ./my-model --limit 4

What follows `--` goes to `lil sweep`. Each kill is SIGKILL: nothing can be caught or cleaned up.
Moments are drawn over the sweep's progress (bytes stored), so that no kill falls behind its end,
and wait a random part of a second more, so that they fall anywhere inside a batch. Then one record
is cut short and another corrupted, and the same command has to notice both and mend them.

Prints what was counted; exit code 1 if anything differs. Seconds are measured, so not compared.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout this script belongs to

from experiments.store.store import Store

LIL = [sys.executable, "-m", "experiments.cli"]
PROJECT = Path(__file__).parents[1]


def sweep(out: Path, arguments: Sequence[str]) -> subprocess.Popen[str]:
    """Start `lil sweep`, writing into `out`."""
    command = [*LIL, "sweep", *arguments, "--out", str(out), "--json"]
    return subprocess.Popen(
        command,
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


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
    return {r.id: r.trace()["new_ids"] for r in Store(out) if not r.failed}


def stored_bytes(out: Path) -> int:
    """Bytes of all trace files."""
    return sum(path.stat().st_size for path in (out / "traces").glob("*.zst"))


def kill_at(process: subprocess.Popen[str], out: Path, size: float, delay: float) -> bool:
    """SIGKILL once the store has grown to `size` and `delay` seconds passed; False if it ended."""
    while process.poll() is None and stored_bytes(out) < size:
        time.sleep(0.02)
    deadline = time.monotonic() + delay
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    if process.poll() is not None:
        return False
    process.send_signal(signal.SIGKILL)
    process.communicate()
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


def main() -> int:
    """The whole test; 0 if everything agrees."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--delay", type=float, default=1.0, help="most seconds after the moment")
    parser.add_argument("sweep", nargs="*", help="arguments of lil sweep (default: demo-small)")
    args = parser.parse_args()
    arguments = args.sweep or ["--preset", "demo-small"]
    rng = random.Random(args.seed)
    folder = Path(tempfile.mkdtemp(prefix="lil-kill-"))
    try:
        return _compare(folder, arguments, args.kills, args.delay, rng)
    finally:
        shutil.rmtree(folder)


def _compare(
    folder: Path, arguments: Sequence[str], kills: int, delay: float, rng: random.Random
) -> int:
    whole, killed = folder / "whole", folder / "killed"
    print("sweeping without a kill", flush=True)
    expected, _ = finish(whole, arguments)
    runs = len(Store(whole))
    size = stored_bytes(whole)

    done = 0
    for moment in sorted(rng.uniform(0.0, 0.95) for _ in range(kills)):
        process = sweep(killed, arguments)
        if kill_at(process, killed, moment * size, rng.uniform(0.0, delay)):
            done += 1
        left = len(Store(killed)) if killed.exists() else 0
        print(f"kill {done} at {moment:.0%}: {left} of {runs} runs stored", flush=True)
    found, _ = finish(killed, arguments)

    store = Store(killed)
    twice, lost = store.stored() - len(store), runs - len(store)
    torn = len(store.notices)
    same_rows = comparable(found) == comparable(expected)
    same_tokens = tokens(killed) == tokens(whole)
    print(
        f"{done} kills: {runs} runs, {twice} stored twice, {lost} lost, "
        f"{torn} torn records dropped; rows {'the same' if same_rows else 'DIFFER'}, "
        f"tokens {'the same' if same_tokens else 'DIFFER'}"
    )

    suffered = damage(killed, rng)
    reported = len(Store(killed).notices) - torn
    readable = len(Store(killed))
    mended, said = finish(killed, arguments)
    again = mended["manifest"]["counts"]["decoded"]
    same_mended = comparable(mended) == comparable(expected)
    print(
        f"{suffered} records damaged: {reported} reported, {readable} of {runs} runs still read, "
        f"{again} decoded again; rows {'the same' if same_mended else 'DIFFER'}"
    )
    for line in said.splitlines():
        if "torn" in line or "corrupt" in line:
            print(f"  {line}")
    good = (done, twice, lost, same_rows, same_tokens) == (kills, 0, 0, True, True) and (
        reported,
        runs - readable,
        again,
        same_mended,
    ) == (suffered, suffered, suffered, True)
    print("everything agrees" if good else "NOT the same")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
