"""Time of a decode step of one layer over FlashAttention's paged kernel on a GPU, sparse and full.

    python scripts/bench/serving/sparse_flash.py                         # under three minutes
    python scripts/bench/serving/sparse_flash.py --shapes wide --contexts 32768 --rows 1 16
    python scripts/bench/serving/sparse_flash.py --device cpu --stand-in \\
        --shapes reasoner --contexts 256 --rows 2 --turns 3 --budget 128  # code, no numbers

A sparse step is `FlashLayer.forward` for one new token of every row: what is remembered of blocks
kept up to date, blocks chosen, and the kernel over them; a full one is the kernel over all blocks
of the same cache. Caches hold random numbers in bfloat16, and rows own random blocks. What is
compared takes turns, and the order changes from turn to turn.

step_ms: by events, after as much memory was read as several L2 caches hold; the device is kept
busy until the host has launched the step, so that no gap of the host is in it. captured_ms: the
same of the step as a CUDA graph, in turns of graphs alone, or the reason why there is none.
host_ms: wall time of a step among several that follow each other, warm. launch_ms: until the host
has launched one. plan_ms: until the plan of a step, which serves all layers, is made and on the
device. times_full: how many times
shorter than the full step, the median of the ratios within a turn, as are host_times_full and
captured_times_full. of_bound: share of the time that reading `bytes` takes at the bandwidth of a
copy on the same device.

Progress goes to the error stream; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "bench" / "serving")]

from device_clock import Clock  # noqa: E402
from paged_layers import (  # noqa: E402
    Heads,
    Kernel,
    Metadata,
    MissingError,
    Paged,
    angles_of,
    compared_by,
    kernel_of,
    layer_of,
    place,
    rope_of,
)

from attention.errors import InvalidValue, check_int  # noqa: E402
from lil.serving.blocks import BlockPolicy, StepReads, policy_of, queries  # noqa: E402

BLOCK = 16
SHAPES = {"wide": Heads(8, 4, 128), "reasoner": Heads(2, 2, 64)}
#: Turns before those that count.
WARMING = 2
#: Before the first that counts.
WARM_SECONDS = 8.0
#: Tokens whose keys are remembered at once.
NOTED = 2**16
#: Steps that follow each other take about so long, and are not more.
ROW_SECONDS, ROW_STEPS = 0.004, 10
#: The device is kept busy for so much longer than the host is thought to launch.
LEAD_MS = 0.3


def policies(budget: int) -> dict[str, str | None]:
    """What is compared, by name; None reads everything."""
    return {
        "full": None,
        "sink": f'sink(budget={budget}, sinks={BLOCK}, positions="absolute")',
        "quest": f"quest(budget={budget})",
        "infllm": f"infllm(budget={budget}, n_init={2 * BLOCK}, repr_topk={BLOCK}, "
        'far_position="absolute")',
    }


@dataclass
class Rows:
    """A cache of rows that have seen as many tokens, and what layers remember of it.

    Args:
        heads: of the layer.
        rows, seen: how many, and the tokens that each sees.
        device, dtype: of the cache.
    """

    heads: Heads
    rows: int
    seen: int
    device: str
    dtype: torch.dtype

    def __post_init__(self) -> None:
        begun = -(-self.seen // BLOCK)
        blocks = self.rows * begun + 1
        size = (blocks, self.heads.Hkv, BLOCK, 2 * self.heads.D)
        self.cache = torch.empty(size, dtype=self.dtype, device=self.device)
        for first in range(0, blocks, 2**14):
            self.cache[first : first + 2**14].normal_()
        table = torch.randperm(blocks - 1, device=self.device) + 1
        self.owned = table.view(self.rows, begun).to(torch.int32)
        # Of each block, where in its row it lies.
        self.number = torch.zeros(blocks, dtype=torch.int64, device=self.device)
        self.number[table] = torch.arange(begun, device=self.device).repeat(self.rows)
        self.rope = rope_of(angles_of(begun * BLOCK, self.heads.D, self.device))

    @staticmethod
    def gib(heads: Heads, rows: int, seen: int) -> float:
        """What keys and values of so many rows take in bfloat16."""
        return rows * seen * heads.Hkv * 2 * heads.D * 2 / 2**30

    def layer(self, kernel: Kernel, policy: BlockPolicy) -> Paged:
        """A layer that remembers all of the blocks."""
        made = layer_of(kernel, policy, self.heads, self.rope)
        if policy.best:
            known, place = made.remember(self.cache), torch.arange(BLOCK, device=self.device)
            many = NOTED // BLOCK
            for first in range(0, len(self.cache), many):
                some = self.cache[first : first + many, :, :, : self.heads.D]
                k = some.transpose(1, 2).flatten(0, 1)
                block = torch.arange(first, first + len(some), device=self.device)
                slots = (block[:, None] * BLOCK + place).flatten()
                known.note(k, slots, (self.number[block][:, None] * BLOCK + place).flatten())
        return made


class Step:
    """One decode step of the first rows of a cache.

    Args:
        rows: the cache.
        count: of its rows.
    """

    def __init__(self, rows: Rows, count: int) -> None:
        self.rows, self.count = rows, count
        heads = rows.heads
        self.q, self.k, self.v = (
            torch.randn(count, H, heads.D, dtype=rows.dtype, device=rows.device)
            for H in (heads.Hkv * heads.G, heads.Hkv, heads.Hkv)
        )
        self.out = torch.empty_like(self.q)
        self.owned = rows.owned[:count].contiguous()
        starts = torch.arange(count + 1, dtype=torch.int32, device=rows.device)
        lengths = torch.full((count,), rows.seen, dtype=torch.int32, device=rows.device)
        last = self.owned[:, -1].long() * BLOCK + (rows.seen - 1) % BLOCK
        self.told: dict[str, Any] = {
            "num_actual_tokens": count,
            "query_start_loc": starts,
            "seq_lens": lengths,
            "max_query_len": 1,
            "max_seq_len": rows.seen,
            "block_table": self.owned,
            "slot_mapping": last,
        }

    def plan(self, policy: BlockPolicy) -> StepReads:
        """The plan of the step, which serves all layers."""
        past, new = (np.full(self.count, n, dtype=np.int64) for n in (self.rows.seen - 1, 1))
        # Of prompts of one token: all others were generated.
        found = queries(policy, past, new, np.ones(self.count, dtype=np.int64))
        return StepReads.planned(policy, found, past, new, self.owned, self.rows.heads.Hkv)

    def run(self, layer: Paged, plan: StepReads) -> Callable[[], object]:
        """Launches the step."""
        meta = Metadata(**vars(plan), **self.told)

        def launch() -> object:
            return layer.forward(None, self.q, self.k, self.v, self.rows.cache, meta, self.out)

        return launch


@dataclass
class Way:
    """One of what is compared, and its times of each turn in milliseconds.

    Attributes:
        policy: None reads everything.
        run: launches the step.
        make: makes its plan.
        lead_ms, steps: of `Clock`.
    """

    policy: BlockPolicy | None
    run: Callable[[], object]
    make: Callable[[], object] | None
    lead_ms: float
    steps: int
    times: dict[str, list[float]] = field(default_factory=dict)

    def turn(self, clock: Clock) -> None:
        """Measure once more."""
        found = {
            "step_ms": clock.cold(self.run, self.lead_ms),
            "host_ms": 1000 * clock.finished(self.run, self.steps),
        }
        clock.wait()
        found["launch_ms"] = 1000 * clock.launched(self.run)
        clock.wait()
        if self.make is not None:
            found["plan_ms"] = 1000 * clock.finished(self.make)
        for name, one in found.items():
            self.times.setdefault(name, []).append(one)


def ways_of(
    step: Step, layers: dict[str, tuple[Paged, BlockPolicy | None]], clock: Clock
) -> dict[str, Way]:
    """What is compared in a step, warm and captured."""
    made = {}
    for name, (layer, policy) in layers.items():
        plan = StepReads() if policy is None else step.plan(policy)
        if policy is not None and plan.sparse is None:
            raise ValueError(f"{name} reads everything of {step.rows.seen} tokens")
        run = step.run(layer, plan)
        for _ in range(3):
            run()
        each = clock.finished(run, 2)
        clock.wait()
        launch = max(clock.launched(run) for _ in range(2))

        def make(policy: BlockPolicy | None = policy) -> object:
            assert policy is not None
            return step.plan(policy)

        steps = max(2, min(ROW_STEPS, int(ROW_SECONDS / each)))
        lead = LEAD_MS + 2000 * launch
        made[name] = Way(policy, run, make if policy else None, lead, steps)
    return made


def in_turns(names: Iterable[str], turns: int) -> Iterator[str]:
    """All names in each turn, those for warmth first, with another name first each time."""
    order = list(names)
    for turn in range(WARMING + turns):
        first = turn % max(1, len(order))
        yield from (*order[first:], *order[:first])


def compared(
    step: Step,
    layers: dict[str, tuple[Paged, BlockPolicy | None]],
    clock: Clock,
    turns: int,
    speed: float,
) -> list[dict[str, Any]]:
    """The rows of a table: what is compared in one step."""
    ways = ways_of(step, layers, clock)
    for name in in_turns(ways, turns):
        ways[name].turn(clock)
    # A capture that fails may leave something behind, so graphs come last.
    graphs = {name: clock.captured(name, way.run) for name, way in ways.items()}
    replays = {name: replay for name, (replay, _) in graphs.items() if replay is not None}
    for name in in_turns(replays, turns):
        one = clock.cold(replays[name], LEAD_MS)
        ways[name].times.setdefault("captured_ms", []).append(one)
    for way in ways.values():
        way.times = {kind: times[-turns:] for kind, times in way.times.items()}
    full, found = ways["full"].times, []
    for name, way in ways.items():
        ratios = {
            kind: [a / b for a, b in zip(full[kind], way.times[kind], strict=True)]
            for kind in ("step_ms", "host_ms", "captured_ms")
            if kind in full and kind in way.times
        }
        step_ms, needed = median(way.times["step_ms"]), read(step, way.policy)
        captured = way.times.get("captured_ms")
        found.append(
            {
                "policy": name,
                "rows": step.count,
                "context": step.rows.seen,
                "step_ms": step_ms,
                "host_ms": median(way.times["host_ms"]),
                "launch_ms": median(way.times["launch_ms"]),
                "captured_ms": median(captured) if captured else graphs[name][1],
                "plan_ms": median(way.times["plan_ms"]) if "plan_ms" in way.times else None,
                "times_full": median(ratios["step_ms"]),
                "host_times_full": median(ratios["host_ms"]),
                "captured_times_full": (
                    median(ratios["captured_ms"]) if "captured_ms" in ratios else None
                ),
                "faster_in": sum(ratio > 1 for ratio in ratios["step_ms"]),
                "turns": turns,
                "compared_by": compared_by(layers[name][0]),
                **needed,
                "of_bound": 1000 * needed["bytes"] / speed / step_ms,
            }
        )
    return found


def read(step: Step, policy: BlockPolicy | None) -> dict[str, int]:
    """What a step has to read."""
    at, heads = np.array([step.rows.seen]), step.rows.heads
    keys, remembered = step.rows.seen, 0
    if policy is not None:
        keys = int(policy.tokens_read(at)[0])
        if policy.best:
            remembered = int(policy.blocks_compared(at)[0]) * policy.size(heads.D) * 4
    each = keys * 2 * heads.D * step.rows.cache.element_size() + remembered
    return {"bytes": step.count * heads.Hkv * each, "keys_read": keys}


def give_back(clock: Clock) -> None:
    """Return memory that nothing refers to any longer."""
    gc.collect()
    if clock.on_gpu:
        # After an error of the device nothing works, and what was measured is still printed.
        with suppress(RuntimeError):
            torch.cuda.empty_cache()


def measured(
    options: argparse.Namespace, kernel: Kernel, clock: Clock, speed: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of all tables by the name of the shape; what is left out says why under `skipped`."""
    dtype = torch.float32 if options.stand_in else torch.bfloat16
    # A host that has just begun is slower than later.
    warm_until = perf_counter() + WARM_SECONDS
    until = warm_until + options.seconds
    for name in options.shapes:
        heads = SHAPES[name]
        for seen in options.contexts:
            fit = [n for n in options.rows if Rows.gib(heads, n, seen) <= options.gib]
            for count in sorted({*options.rows} - {*fit}):
                size = Rows.gib(heads, count, seen)
                why = f"its cache of {size:.1f} GiB is larger than {options.gib:g} GiB"
                yield name, {"rows": count, "context": seen, "skipped": why}
            if not fit:
                continue
            left = sorted(fit)
            rows: Rows | None
            step: Step | None
            layers: dict[str, tuple[Paged, BlockPolicy | None]] | None
            try:
                if perf_counter() > until:
                    raise TimeoutError(f"{options.seconds:g} s are over")
                rows = Rows(heads, max(fit), seen, clock.device, dtype)
                every = {
                    kind: None if text is None else policy_of(text, BLOCK)
                    for kind, text in policies(options.budget).items()
                }
                sink = every["sink"]
                assert sink is not None
                layers = {k: (rows.layer(kernel, p or sink), p) for k, p in every.items()}
                while left:
                    if perf_counter() > until:
                        raise TimeoutError(f"{options.seconds:g} s are over")
                    said = f"{name}: {left[0]} rows of {seen} tokens"
                    print(said, file=sys.stderr, flush=True)
                    step = Step(rows, left[0])
                    while clock.on_gpu and perf_counter() < warm_until:
                        compared(step, layers, clock, 1, speed)
                    for one in compared(step, layers, clock, options.turns, speed):
                        print(json.dumps(one), file=sys.stderr, flush=True)
                        yield name, one
                    del left[0]
            except (RuntimeError, ValueError, TimeoutError) as error:
                why = f"{type(error).__name__}: {error}"[:500]
                print(why, file=sys.stderr, flush=True)
                for count in left:
                    yield name, {"rows": count, "context": seen, "skipped": why}
            finally:
                rows = layers = step = None
                give_back(clock)


def check_counts(options: argparse.Namespace) -> None:
    """Refuse what nothing can be measured of.

    Raises:
        InvalidValue: a count below 1, or a budget that a policy cannot have.
    """
    for name in ("contexts", "rows", "turns"):
        given = getattr(options, name)
        for value in given if isinstance(given, list) else [given]:
            check_int(name, value, 1)
    for text in policies(options.budget).values():
        if text is not None:
            policy_of(text, BLOCK)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    given.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    given.add_argument("--stand-in", action="store_true", help="plain torch for the kernel")
    given.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    given.add_argument("--contexts", nargs="+", type=int, default=[2048, 8192, 32768, 131072])
    given.add_argument("--rows", nargs="+", type=int, default=[1, 16, 64])
    given.add_argument("--turns", type=int, default=15)
    given.add_argument("--budget", type=int, default=1024)
    given.add_argument("--gib", type=float, default=40.0, help="of a cache at most (40)")
    given.add_argument("--seconds", type=float, default=240.0, help="then no more is begun (240)")
    options = given.parse_args(arguments)
    try:
        check_counts(options)
        kernel = kernel_of(options.stand_in)
    except (InvalidValue, MissingError) as error:
        print(f"sparse_flash: {error}", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    begin, every = perf_counter(), dict[str, list[dict[str, Any]]]()
    with torch.inference_mode():
        clock = Clock(options.device)
        speed = clock.bandwidth()
        for name, one in measured(options, kernel, clock, speed):
            every.setdefault(name, []).append(one)
    told = {
        **place(options.stand_in),
        "dtype": "float32" if options.stand_in else "bfloat16",
        "block": BLOCK,
        "budget": options.budget,
        "policies": policies(options.budget),
        "threads": torch.get_num_threads(),
        "bandwidth_bytes_per_s": speed,
        "bytes_read_before_a_step": clock.other.nbytes,
        "seconds": round(perf_counter() - begin, 1),
        "shapes": {name: asdict(SHAPES[name]) for name in options.shapes},
    }
    print(json.dumps({**told, "rows": every}), flush=True)
    return 0 if any("step_ms" in one for found in every.values() for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
