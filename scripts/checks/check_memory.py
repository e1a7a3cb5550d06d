"""Decodes 20,000 tokens with every method that drops tokens and prints what it holds on the way.

    python scripts/checks/check_memory.py              # every such method, budget 64
    python scripts/checks/check_memory.py --method h2o --steps 5000

One layer outside any model is stepped, so that the time goes into the methods. Every value vector
says which position it belongs to, so that what is held can be compared with the positions a method
says it keeps, which must end in the newest token. Exit code 1 if memory grows after the first tenth
of the steps, if a position is not what it says, or if more is read than the budget.
"""

from __future__ import annotations

import argparse
import resource
import sys

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import attention
from attention.patching.cache import AttentionCache
from experiments.bench import Shape, empty, forward, sparse

BUDGET = 64
SHAPE = Shape(heads=4, kv_heads=2, head_size=8, batch=2, dtype="float64")
PROMPT = 40  # shorter than the budget, and RaaS can protect all of it


def feed(cache: AttentionCache, T: int) -> None:
    """T more tokens a row; the values of a token are its position + 1."""
    B, Hkv, D = SHAPE.batch, SHAPE.kv_heads, SHAPE.head_size
    start = cache.get_seq_length()
    value = torch.arange(start, start + T, dtype=SHAPE.torch_dtype) + 1  # empty slots hold 0
    q = torch.randn(B, SHAPE.heads, T, D, dtype=SHAPE.torch_dtype)
    k = torch.randn(B, Hkv, T, D, dtype=SHAPE.torch_dtype)
    with torch.no_grad():
        forward(cache, q, k, value[:, None].expand(B, Hkv, T, D).contiguous())


def allocated(cache: AttentionCache) -> int:
    """Bytes of all tensors of the state, spare room included."""
    slots = [s.data for layer in cache.layers for s in layer.state.values()]
    return sum(x.numel() * x.element_size() for x in slots)


def wrong_positions(cache: AttentionCache, n: int) -> str | None:
    """What is wrong with the positions a cache says it keeps and reads after n tokens, if anything.

    Every position kept must be held as a value, once, and the newest token must have been read.
    """
    if cache.seen.tolist() != [n] * SHAPE.batch:
        return f"seen {cache.seen.tolist()} instead of {n}"
    values = cache.layers[0].state["v"].data[..., 0] - 1
    kept, read = cache.kept_positions(0), cache.read_positions(0)
    for row in range(SHAPE.batch):
        for head in range(SHAPE.kv_heads):
            says, held = kept[row][head].tolist(), values[row, head].tolist()
            if len(set(says)) < len(says) or any(held.count(float(p)) != 1 for p in says):
                return f"row {row} head {head}: says it keeps {says}, holds {sorted(held)}"
            if read[row][head].max() != n - 1:
                return f"row {row} head {head}: newest token read is {int(read[row][head].max())}"
    return None


def dropping() -> list[str]:
    """Methods that hold no more than the budget after twice as many tokens."""
    found = []
    for name in attention.names():
        cache = empty(sparse(name, BUDGET), SHAPE)
        for T in (PROMPT, *[1] * (2 * BUDGET)):
            feed(cache, T)
        if cache.stats().kept <= BUDGET:
            found.append(name)
    return found


def check(name: str, steps: int, report: Table) -> bool:
    """Step one method and add its line; whether all was as it must be."""
    torch.manual_seed(0)
    cache = empty(sparse(name, BUDGET), SHAPE)
    feed(cache, PROMPT)
    bytes_held, reads, trouble = [], 0, None
    bar = Console(stderr=True)
    for i in track(range(1, steps + 1), description=name, transient=True, console=bar):
        feed(cache, 1)
        reads = max(reads, int(cache.layers[0].reads(cache.seen.numpy()).max()))
        if i % max(steps // 10, 1) == 0:
            bytes_held.append(allocated(cache))
            trouble = trouble or wrong_positions(cache, PROMPT + i)
    flat = len(set(bytes_held)) == 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report.add_row(
        name,
        f"{steps:,}",
        f"{bytes_held[0]:,}",
        f"{bytes_held[-1]:,}",
        str(reads),
        trouble or "exact",
        f"{peak:.0f}",
    )
    return flat and trouble is None and reads <= BUDGET


def main() -> int:
    parser = argparse.ArgumentParser(description="Memory and positions over a long decode.")
    parser.add_argument("--method", choices=attention.names(), help="only this one")
    parser.add_argument("--steps", type=int, default=20_000, help="decode steps")
    args = parser.parse_args()
    if args.steps < 1:
        parser.error(f"--steps {args.steps}: expected at least 1")

    torch.set_num_threads(1)  # tiny tensors: a second thread costs more than it gives
    report = Table(title=f"one layer, budget {BUDGET}, {SHAPE.batch} rows", box=None)
    for column in ("method", "steps", "bytes at 1/10", "bytes at end", "most read"):
        report.add_column(column, justify="left" if column == "method" else "right")
    report.add_column("positions")
    report.add_column("peak MB of process", justify="right")
    names = [args.method] if args.method else dropping()
    good = [check(name, args.steps, report) for name in names]
    Console(width=None if sys.stdout.isatty() else 120).print(report)
    return 0 if all(good) else 1


if __name__ == "__main__":
    raise SystemExit(main())
