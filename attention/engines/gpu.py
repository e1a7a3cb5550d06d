"""Decode attention in two launches a layer, with every length on the device.

Nothing here depends on how long a row is: the same kernels run on the same memory in every step, so
that a whole step can be captured as a CUDA graph (`attention.patching.captured`).
"""

from __future__ import annotations

import importlib
import math
import os
import shutil
import sysconfig
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attention.core import devices
from attention.core.kernels import softmax
from attention.core.ropes import Turn
from attention.core.step import Counts

# Bytes of keys that a program looks at at once; several such tiles fit any GPU's shared memory.
_TILE_BYTES = 1 << 14
# Programs wanted for each of a GPU's processors; more splits than that are not worth joining.
_PROGRAMS, _MOST_SPLITS = 2, 128
#: Query heads of a KV head that a program serves.
MOST_QUERIES = 64
# Slots that a program looks at at once where it chooses which token is lost.
_BLOCK = 1024
# In the interpreter, so that short tests have several splits, tiles and blocks.
_INTERPRETED_PROCESSORS, _INTERPRETED_TILE, _INTERPRETED_BLOCK = 8, 16, 32


def power_of_two(n: int, least: int = 16) -> int:
    """The next one; 16 is the least that a GPU's matrix units multiply."""
    return max(least, 1 << (n - 1).bit_length())


def interpreted() -> bool:
    """Whether kernels are computed on the CPU, as triton decides when it is imported."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")


def unfit(device: torch.device) -> str | None:
    """What this machine lacks; None if nothing."""
    if not torch.cuda.is_available():
        return "a CUDA device: torch finds none"
    if torch.version.hip is None:
        capability = torch.cuda.get_device_capability(device)
        if capability < (8, 0):  # the oldest that Triton compiles for
            return "a GPU of compute capability 8.0 or higher, not {}.{}".format(*capability)
    if "CC" not in os.environ and not any(map(shutil.which, ("gcc", "clang"))):
        return "a C compiler, with which triton builds what starts its kernels (CC, gcc or clang)"
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").is_file():
        return f"Python's headers, which that takes, too: there is no {headers / 'Python.h'}"
    return None


def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU, or what the interpreter is taken for."""
    if device.type == "cpu":
        return _INTERPRETED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


class DeviceCounts:
    """What kernels must know of each of at most so many rows, (rows,) int32 at fixed addresses.

    That is the tokens `seen` before the step, whether it is `live` or a place that is free, and
    what layers need in addition. The host writes it where rows come, go or are cut, and nowhere
    else.
    """

    def __init__(self, rows: int, tokens: int, device: torch.device) -> None:
        self.rows, self.tokens, self.device = rows, tokens, device
        self.numbers: dict[str, Tensor] = {}
        self.lengths: set[str] = set()  # which of the numbers grow by `live` when a step ends
        self.seen, self.live = self.number("seen", grows=True), self.number("live")
        # Where kernels count the slots that they read, (R, H, parts) by layer, rows of a step and
        # whether pages are read; None where they do not.
        self.reads: dict[tuple[int, int, bool], Tensor] | None = None
        # Whether layers that choose read all in this step; and as `Step.handed`, until it ends.
        self.dense, self.handed = True, None

    def number(self, name: str, grows: bool = False) -> Tensor:
        """A number of each row, 0 until it is written; `grows` where it is a length."""
        if grows:
            self.lengths.add(name)
        if name not in self.numbers:
            self.numbers[name] = torch.zeros(self.rows, dtype=torch.int32, device=self.device)
        return self.numbers[name]

    def write(self, seen: Counts, numbers: Mapping[str, Counts]) -> None:
        """The first rows are live and have these numbers; the others are free."""
        rows = len(seen)
        for name, values in {"seen": seen, "live": np.ones_like(seen), **numbers}.items():
            self.numbers[name][:rows].copy_(devices.put(values, self.device, torch.int32))
            self.numbers[name][rows:].zero_()

    def end_step(self, rows: int) -> None:
        """Every live row among the first ones has one token more."""
        self.handed = None
        for name in sorted(self.lengths):
            self.numbers[name][:rows].add_(self.live[:rows])


@dataclass(frozen=True)
class Eviction:
    """What a layer remembers of its slots, and how it chooses the token that it drops.

    A slot is worth its "score", what it is remembered to have got; what it got in the "last" step;
    or a "number" drawn for its position. "mass" is remembered where nothing is dropped. "" is for
    hooks that learn and choose, and for layers that do neither.
    """

    worth: str = ""
    following: Tensor | None = None  # the slot of the next token, (rows, H, 1)
    spared: Tensor | None = None  # tokens of lower positions stay, (rows,)
    recent: Tensor | None = None  # so many newest tokens stay, the next one among them, (rows,)
    memory: Tensor | None = None  # (rows, H, C) or (rows, H, C, G), float32
    numbers: Tensor | None = None  # of heads, (H,) int64
    shared: bool = False  # whether all heads drop the same token

    @property
    def remembered(self) -> int:
        """Numbers remembered of a slot."""
        return 0 if self.memory is None else math.prod(self.memory.shape[3:])


@dataclass(frozen=True)
class Store:
    """Where the keys and values of a layer lie, and where the next token goes.

    Its place is "append", behind those in use; "ring", over the oldest one outside the `first`;
    "next", where `eviction` says; "stored", "table": it is in its slot already. With "table" pages
    alone are read, and with "paged", as "append", where they end with it.
    """

    index: int  # of the layer
    keys: Tensor  # (rows, Hkv, C, D), contiguous
    values: Tensor
    lengths: Tensor  # slots in use before a step, (rows,)
    limit: int  # slots that are ever in use, at most C
    place: str = "append"
    first: Tensor | None = None  # slots that a ring leaves alone, (rows,)
    # cos and sin of all positions, where a ring's first slots are read as if they came directly
    # before its oldest one.
    turn: Turn | None = None
    position: Tensor | None = None  # of the token in each slot, (rows, Hkv, C) int32
    # Scaled, of the newest tokens, slot = position modulo their number, (rows, Hq, observers, D).
    queries: Tensor | None = None
    eviction: Eviction = Eviction()
    sink_logits: Tensor | None = None  # the model's own further logits, (Hq,)


@dataclass(frozen=True)
class Pages:
    """Pages that a step reads, the new token's among them, or further ones.

    H is Hkv, or Hq where each query head has a set of pages.
    """

    keys: Tensor  # (rows, Hkv, C, D), contiguous
    values: Tensor
    table: Tensor  # pages of each set, ascending, int32, (R, H, U)
    read: Tensor  # how many slots of them are read, int32, (R, H); 0 for a set without any
    size: int  # slots of a page
    first: int = 0  # tokens that have pages of their own; the slots behind them there are empty
    turn: Turn | None = None  # where all is read from `Store.limit` - 1 positions further on


class Splits(NamedTuple):
    """What queries got of each split of the slots and pages they read; `join_splits` adds it up."""

    store: Store
    pages: Pages | None
    mixed: Tensor  # (R, H, parts, M, D), not divided by the totals
    sums: Tensor  # the highest logits, and the totals, (2, R, H, parts, M)
    own: int  # splits of slots, the others are of pages
    tile: int  # slots that a program worked on at once
    logits: Tensor | None  # scaled, of slots, (R, H, M, C) float32, where asked for


def choices() -> Any:
    """`attention.engines.gpu_choice`, which imports triton."""
    return importlib.import_module("attention.engines.gpu_choice")


def _kernels() -> Any:
    """The module of kernels, which imports triton."""
    return importlib.import_module("attention.engines.gpu_kernels")


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Start a kernel on the device of its first argument; it reads nothing of a missing one."""
    first = args[0]
    # Kernels start on the current device, which need not be the one tensors are on.
    with nullcontext() if first.is_cpu else torch.cuda.device(first.device):
        kernel[grid](*(first if x is None else x for x in args), **constants)


def strided(*tensors: Tensor, axes: int = 2) -> list[Any]:
    """Each with the strides of its first axes; numbers of the last one lie side by side."""
    rows = (x if x.stride(-1) == 1 else x.contiguous() for x in tensors)
    return [y for x in rows for y in (x, *x.stride()[:axes])]


def split_count(sets: int, capacity: int, tile: int, device: torch.device) -> int:
    """Among how many programs the slots of a set are split, however many are in use."""
    wanted = -(-_PROGRAMS * processors(device) // sets)
    return max(1, min(wanted, -(-capacity // tile), _MOST_SPLITS))


def attend(
    counts: DeviceCounts, store: Store, q: Tensor, k: Tensor, v: Tensor, scaling: float,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """Store each row's new token, attend, and choose what is dropped next: two launches.

    Queries are not scaled, (R, Hq, 1, D), keys and values (R, Hkv, 1, D). Pages are read in
    addition, or alone, see `Store`. Returns (R, 1, Hq, D); zeros in rows that are not live.
    """
    return join_splits(counts, attend_splits(counts, store, q, k, v, scaling, pages))


def attend_splits(
    counts: DeviceCounts, store: Store, q: Tensor, k: Tensor, v: Tensor, scaling: float,
    pages: Pages | None = None, logits: bool = False,
) -> Splits:  # fmt: skip
    """The first launch of `attend`, with the `logits` of slots where they are asked for."""
    (R, Hq, _, D), Hkv, how = q.shape, k.shape[1], store.eviction
    none = store.lengths.new_empty((R, Hkv, 0))
    more = pages or Pages(store.keys, store.values, none, none, size=1, turn=store.turn)
    (H, U), turn, reads = more.table.shape[1:], more.turn, None
    M, N, capacity, width = Hq // H, R * H, store.keys.shape[2], power_of_two(D)
    tile = max(16, min(64, _TILE_BYTES // (width * q.itemsize)))
    tile = _INTERPRETED_TILE if interpreted() else tile
    own = 0 if store.place in ("table", "paged") else split_count(N, capacity, tile, q.device)
    parts = own + (split_count(N, U * more.size, tile, q.device) if U else 0)
    if counts.reads is not None:
        fresh = torch.zeros((R, H, parts), dtype=torch.int32, device=q.device)
        reads = counts.reads.setdefault((store.index, R, pages is not None), fresh)
    first = store.first if how.following is None else how.following
    logits = logits or how.worth not in ("", "number")
    wide = torch.float32
    splits = Splits(
        store, pages, q.new_empty((R, H, parts, M, D), dtype=wide),
        q.new_empty((2, R, H, parts, M), dtype=wide), own, tile,
        q.new_empty((R, H, M, capacity), dtype=wide) if logits else None,
    )  # fmt: skip
    launch(
        _kernels().attend, (N, parts),
        *strided(q, k, v), store.keys, store.values, capacity, store.limit, store.lengths, first,
        store.position, how.memory, store.queries,
        more.keys, more.values, more.keys.shape[2], more.table, U, more.read,
        *(turn or (None, None)), scaling, counts.seen, counts.live,
        splits.mixed, splits.sums, parts, own, splits.logits, reads,
        H=H, SHARED=H // Hkv, M=M, D=D, PLACE=store.place, SLOTS=own > 0, TABLE=U > 0,
        PAGE=more.size, FIRST=more.first, POSITIONS=store.position is not None,
        MEMORY=how.remembered, LOGITS=logits, COUNT=reads is not None, ROWS=power_of_two(M),
        OBSERVERS=0 if store.queries is None else store.queries.shape[2],
        TURN=0 if turn is None else turn[0].shape[1], WIDTH=width, TILE=tile,
        # Float32 is not multiplied in tensor cores, and takes registers, as a second loop does.
        num_warps=8 if q.dtype == torch.float32 or turn is not None else 4,
    )  # fmt: skip
    return splits


def join_splits(counts: DeviceCounts, splits: Splits) -> Tensor:
    """The second launch of `attend`."""
    store, pages, how = splits.store, splits.pages, splits.store.eviction
    (R, H, parts, M, D), capacity = splits.mixed.shape, store.keys.shape[2]
    block = min(_BLOCK, _INTERPRETED_BLOCK if interpreted() else power_of_two(capacity))
    out = store.keys.new_empty((R, 1, H * M, D))
    launch(
        _kernels().merge, (R * H, M + (how.worth != "")),
        splits.mixed, splits.sums, parts, splits.own,
        store.lengths, store.limit, None if pages is None else pages.read, store.sink_logits,
        counts.seen, counts.live, out, splits.logits, capacity, store.position,
        how.memory, how.following, how.spared, how.recent, how.numbers,
        H=H, M=M, D=D, SLOTS=splits.own > 0, TABLE=pages is not None,
        SINKS=store.sink_logits is not None, WORTH=how.worth, MEMORY=how.remembered,
        HEADS=H if how.shared else 1, WIDTH=power_of_two(D), SPLITS=power_of_two(parts, 2),
        TILE=splits.tile, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out


def probabilities(counts: DeviceCounts, splits: Splits) -> Tensor:
    """What each slot gets of each query, float32, (R, H, M, C): 0 in empty slots."""
    store, logits = splits.store, splits.logits
    assert logits is not None
    (R, H, M, C), sinks = logits.shape, store.sink_logits
    length = (store.lengths[:R] + 1).clamp(max=store.limit) * counts.live[:R]
    hidden = torch.arange(C, device=logits.device) >= length[:, None, None, None]
    # Finite, as a row that is not live holds nothing.
    scores = logits.masked_fill(hidden, torch.finfo(logits.dtype).min)
    return softmax(scores, None if sinks is None else sinks.view(H, M, 1)).masked_fill(hidden, 0.0)
