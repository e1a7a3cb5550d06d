"""Kill commands at random moments, restart them each time, and compare with one never killed.

    python scripts/checks/kill_test.py                      # ten kills of a demo-small sweep
    python scripts/checks/kill_test.py --kills 3 -- --model ./my-model --limit 4
    python scripts/checks/kill_test.py --kills 50 --commands sweep,replay,report --signals \
        -- --preset demo-small --limit 2 --budget 64

    python scripts/checks/kill_test.py --kills 30 --worker-kills 20 \\
        -- --preset demo-small --limit 2 --budget 64 --workers 2

What follows `--` goes to `lil sweep`. Each kill is SIGKILL: nothing can be caught or cleaned up.
Processes are forked when all is imported, so that kills fall into the work and not into imports.
Moments of a sweep are drawn over its progress (bytes stored), so that no kill falls behind its end,
and wait a random part of a second more, so that they fall anywhere inside a batch; those of a
report or a replay over the time it takes. Then one record is cut short and another corrupted, and
the same command has to notice both and mend them.

With `--workers 2` among these arguments a kill falls on the driver alone or on its whole group,
and none of the others may outlive it for long. `--worker-kills` kills workers alone, several in a
sweep, which has to end as if nothing had happened.

`--signals` sends SIGTERM and SIGHUP to each command as well: it has to end with 130 and one line.

Prints what was counted; exit code 1 if anything differs. Seconds are measured, so not compared.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the checkout this script belongs to
sys.path.insert(0, str(Path(__file__).parent))

from killing.groups import gone, kill_workers
from killing.readers import READERS, kill_reader, left_hidden
from killing.signals import end_politely
from killing.sweeps import (
    comparable,
    damage,
    finish,
    kill_at,
    stored_bytes,
    sweep,
    tokens,
)

from experiments.store.store import Store

COMMANDS = ("sweep", *READERS)
#: Sweeps from nothing into which a kill falls at once where one ended before it.
RETRIES = 3


def main() -> int:
    """The whole test; 0 if everything agrees."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--worker-kills", type=int, default=0, help="of workers alone")
    parser.add_argument("--commands", default="sweep", help=f"of {', '.join(COMMANDS)}")
    parser.add_argument("--signals", action="store_true", help="SIGTERM and SIGHUP too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--delay", type=float, default=1.0, help="most seconds after the moment")
    parser.add_argument("sweep", nargs="*", help="arguments of lil sweep (default: demo-small)")
    args = parser.parse_args()
    commands = args.commands.split(",")
    if not commands or set(commands) - set(COMMANDS):
        parser.error(f"--commands {args.commands}: expected some of {', '.join(COMMANDS)}")
    arguments = args.sweep or ["--preset", "demo-small"]
    rng = random.Random(args.seed)
    folder = Path(tempfile.mkdtemp(prefix="lil-kill-"))
    shares = Counter(commands[at % len(commands)] for at in range(args.kills))
    try:
        print("sweeping without a kill", flush=True)
        whole = folder / "whole"
        expected, _ = finish(whole, arguments)
        good = True
        if shares["sweep"]:
            rows = comparable(expected)
            good &= _compare(folder, whole, rows, arguments, shares["sweep"], args.delay, rng)
        if args.worker_kills:
            rows = comparable(expected)
            good &= kill_workers(folder, whole, rows, arguments, args.worker_kills, rng)
        for command in READERS:
            if shares[command]:
                good &= kill_reader(folder, whole, command, shares[command], rng)
        if args.signals:
            for command in commands:
                good &= end_politely(folder, whole, command, arguments, rng)
    finally:
        shutil.rmtree(folder)
    print("everything agrees" if good else "NOT the same")
    return 0 if good else 1


def _compare(
    folder: Path,
    whole: Path,
    expected: list[dict[str, object]],
    arguments: Sequence[str],
    kills: int,
    delay: float,
    rng: random.Random,
) -> bool:
    """Kill sweeps into one store until it is whole, then damage it; whether all is as it was."""
    killed = folder / "killed"
    runs, size = len(Store(whole)), stored_bytes(whole)
    done, outlived, unlike, whom = 0, 0, 0, Counter[str]()
    for moment in sorted(rng.uniform(0.0, 0.95) for _ in range(kills)):
        for wait in (rng.uniform(0.0, delay), *[0.0] * RETRIES):
            process = sweep(killed, arguments)
            group = rng.random() < 0.5
            if kill_at(process, killed, moment * size, wait, group):
                done += 1
                whom["group" if group else "driver"] += 1
                outlived += not gone(process.id)
                break
            # It ended before: compared as the last one is, and the kill falls into another.
            unlike += tokens(killed) != tokens(whole)
            shutil.rmtree(killed)
        left = len(Store(killed)) if killed.exists() else 0
        print(f"kill {done} at {moment:.0%}: {left} of {runs} runs stored", flush=True)
    found, _ = finish(killed, arguments)

    store = Store(killed)
    twice, lost = store.stored() - len(store), runs - len(store)
    torn = len(store.notices)
    same_rows = comparable(found) == expected
    same_tokens = not unlike and tokens(killed) == tokens(whole)
    hidden = left_hidden(killed)
    print(
        f"{done} kills ({whom['group']} of the whole group, {whom['driver']} of the driver alone, "
        f"{outlived} outlived it): {runs} runs, {twice} stored twice, {lost} lost, "
        f"{torn} torn records dropped, {len(hidden)} hidden files left; "
        f"rows {'the same' if same_rows else 'DIFFER'}, "
        f"tokens {'the same' if same_tokens else 'DIFFER'}"
    )

    suffered = damage(killed, rng)
    reported = len(Store(killed).notices) - torn
    readable = len(Store(killed))
    mended, said = finish(killed, arguments)
    again = mended["manifest"]["counts"]["decoded"]
    same_mended = comparable(mended) == expected
    print(
        f"{suffered} records damaged: {reported} reported, {readable} of {runs} runs still read, "
        f"{again} decoded again; rows {'the same' if same_mended else 'DIFFER'}"
    )
    for line in said.splitlines():
        if "torn" in line or "corrupt" in line:
            print(f"  {line}")
    return (done, outlived, twice, lost, hidden, same_rows, same_tokens) == (
        kills,
        0,
        0,
        0,
        [],
        True,
        True,
    ) and (reported, runs - readable, again, same_mended) == (suffered, suffered, suffered, True)


if __name__ == "__main__":
    raise SystemExit(main())
