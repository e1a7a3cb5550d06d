"""Stores damaged at random: bits, cuts, swaps, folders for files, JSON of other types."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

from fuzzing import stores
from fuzzing.values import NUMBERS, NUMBERS_TOO, TEXTS

Json = Any


def damage(store: Path, rng: random.Random) -> str:
    """Damage a store in one to three places; what was done, in words."""
    return "; ".join(_once(store, rng) for _ in range(rng.choice((1, 1, 1, 2, 3))))


def _once(store: Path, rng: random.Random) -> str:
    files = sorted(path for path in store.rglob("*") if path.is_file() and not path.is_symlink())
    if not files:
        return "nothing is left to damage"
    # By folder first: there are more files of samples than of anything else.
    folder = rng.choice(sorted({path.parent for path in files}))
    path = rng.choice([path for path in files if path.parent == folder])
    name = path.relative_to(store)
    if rng.random() < 0.15:
        return f"{name}: {_replaced(path, files, rng)}"
    before = path.stat()
    if path.suffix == ".json" and rng.random() < 0.7:
        told = _other_json(path, rng)
    else:
        data, told = _other_bytes(path.read_bytes(), rng)
        path.write_bytes(data)
    if rng.random() < 0.5:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        told += ", its time kept"
    return f"{name}: {told}"


def _replaced(path: Path, files: list[Path], rng: random.Random) -> str:
    how = rng.choice(("gone", "a folder", "a link to itself", "another file", "a folder is a file"))
    if how == "a folder is a file":
        shutil.rmtree(path.parent)
        path.parent.write_text("x")
        return how
    other = rng.choice(files).read_bytes()
    path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how == "a link to itself":
        path.symlink_to(path.name)
    elif how == "another file":
        path.write_bytes(other)
    return how


def _other_bytes(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    n = len(data)
    at, length = rng.randrange(n + 1), rng.choice((1, 2, 8, 40, 400))
    how = rng.choice(("bits", "bits", "cut", "lost", "twice", "zeros", "noise", "swapped", "more"))
    if how == "bits":
        changed = bytearray(data)
        count = rng.choice((1, 1, 3, 30)) if n else 0
        for _ in range(count):
            changed[rng.randrange(n)] ^= 1 << rng.randrange(8)
        return bytes(changed), f"{count} bits"
    if how == "cut":
        return data[:at], f"cut at {at} of {n}"
    if how == "lost":
        return data[:at] + data[at + length :], f"{length} bytes lost at {at} of {n}"
    if how == "twice":
        return data[:at] + data[at : at + length] + data[at:], f"{length} bytes twice at {at}"
    if how == "swapped":
        return data[at:] + data[:at], f"its halves swapped at {at} of {n}"
    new = bytes(length) if how == "zeros" else rng.randbytes(length)
    if how == "more":
        return data[:at] + new + data[at:], f"{length} bytes more at {at} of {n}"
    return data[:at] + new + data[at + length :], f"{length} bytes of {how} at {at} of {n}"


def _other_json(path: Path, rng: random.Random) -> str:
    try:
        document = json.loads(path.read_text())
        places = sorted(stores.paths(document), key=str)
        place = rng.choice(places)
    except (ValueError, IndexError):
        return "no JSON any more"
    change = (place, stores.GONE if rng.random() < 0.3 else _any(rng))
    path.write_text(json.dumps(stores.changed(document, *change)), errors="surrogatepass")
    return stores.told(change)


def _any(rng: random.Random, depth: int = 2) -> Json:
    kinds: list[Json] = [None, True, False, [], {}, rng.choice(TEXTS), rng.choice(NUMBERS[:11])]
    kinds += [rng.choice(NUMBERS_TOO), rng.randint(-5, 300)]
    if depth:
        inner = _any(rng, depth - 1)
        kinds += [[inner], [inner, inner], {"name": inner}, {"": inner}]
    return rng.choice(kinds)


def command(store: str, rng: random.Random) -> list[str]:
    """Something that reads a store, or goes on with it."""
    words = rng.choice(
        (
            ["report", store, "--no-figures", "--no-page"],
            ["report", store, "--no-figures"],
            ["report", store, "--sweeps"],
            ["report", store, "--no-figures", "--no-page", "--sweep", "all"],
            ["report", store, "--no-figures", "--no-page", "--csv", "x.csv"],
            ["replay", store, "--f", "3"],
            ["replay", store, "--detector", "cycle"],
            ["replay", store, "--f", "4", "--check-live"],
            ["calibrate", store, "--detector", "guardian"],
            ["curve", f"{store}:{rng.choice('0123456789abcdef')}"],
            ["curve", store],
            ["chopper", "train", "--from", store, "--epochs", "1"],
            ["sweep"],
            ["sweep", "--dry-run"],
        )
    )
    return words + (["--json"] if rng.random() < 0.5 else [])
