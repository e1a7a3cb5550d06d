"""Time of the LZ penalty a step in a serving batch, torch beside C++, in turns in one run.

python scripts/bench/lz_rows_speed.py
python scripts/bench/lz_rows_speed.py --batches 32 --vocabulary 151936
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any
from unittest import mock

import torch
from programs import Column, counts, measuring, one_message, parser, printed, table
from programs import conditions as shown

from attention.errors import InvalidValue
from experiments.bench import UNTIMED, conditions
from lil.penalties import LZPenalty, lz, lz_engine
from lil.penalties._lz_rows import engine_for
from lil.serving.rows import PenaltyRows, padded

CPU = torch.device("cpu")
CONTEXT = 600  # tokens of a row before the first step, more than a ring holds

#: Of a measured batch; `times` is torch's time over C++'s.
COLUMNS = (
    Column("batch", "batch"),
    Column("values", "values", words=True),
    Column("torch us", "torch_us", ".1f"),
    Column("cpp us", "cpp_us", ".1f"),
    Column("times", "times", ".1f"),
)


class Batch:
    """Requests that are served together, all by one engine.

    Args:
        engine: "torch" or "cpp".
        penalties: of each.
        ids: (B, n), their texts.
    """

    def __init__(self, engine: str, penalties: Sequence[LZPenalty], ids: torch.Tensor) -> None:
        self._kind = None if engine == "torch" else engine_for(CPU)
        self._requests = [mock.Mock(penalty=penalty) for penalty in penalties]
        self._rows, self._ids = PenaltyRows(), ids

    def step(self, length: int, scores: torch.Tensor) -> float:
        """Seconds of a step in which texts have so many tokens; `scores` are written."""
        B, tokens = len(self._requests), self._ids[:, :length]
        with mock.patch.object(lz, "engine_for", return_value=self._kind):
            begun = perf_counter()
            self._rows.apply(
                self._requests,
                [length] * B,
                tokens[:, -1],
                lambda which: padded([tokens[i].tolist() for i in which], CPU),
                range(B),
                scores,
            )
            return perf_counter() - begun


def measured(batch: int, vocabulary: int, steps: int, different: bool) -> dict[str, Any]:
    """Median microseconds of a step of each engine.

    Args:
        batch: B.
        vocabulary: V.
        steps: timed ones of each, in turns.
        different: whether every row has an alpha of its own.

    Raises:
        RuntimeError: two engines differ in a score.
    """
    torch.manual_seed(0)
    penalties = [LZPenalty(alpha=0.1 + 0.001 * i * different) for i in range(batch)]
    ids = torch.randint(vocabulary, (batch, CONTEXT + UNTIMED + steps))
    both = {engine: Batch(engine, penalties, ids) for engine in ("torch", "cpp")}
    times: dict[str, list[float]] = {engine: [] for engine in both}
    raw = torch.randn(batch, vocabulary)
    for n in range(UNTIMED + steps):
        found = {}
        for engine, one in both.items():
            found[engine] = raw.clone()
            taken = one.step(CONTEXT + n, found[engine])
            if n >= UNTIMED:
                times[engine].append(1e6 * taken)
        if not torch.equal(found["torch"], found["cpp"]):
            raise RuntimeError(f"batch {batch}: torch and cpp differ")
    spent = {f"{engine}_us": median(each) for engine, each in times.items()}
    values = "different" if different else "equal"
    times_cpp = spent["torch_us"] / spent["cpp_us"]
    return {"batch": batch, "values": values, **spent, "times": times_cpp}


@one_message
def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    flags = parser(__doc__)
    flags.add_argument("--batches", type=counts, default=[1, 8, 32, 128], help="rows (1,8,32,128)")
    flags.add_argument("--vocabulary", type=int, default=32_000, help="scores (32000)")
    flags.add_argument("--steps", type=int, default=50, help="a point; the median counts (50)")
    args = flags.parse_args(argv)
    for name, least in (("vocabulary", 2), ("steps", 1)):
        if getattr(args, name) < least:
            raise InvalidValue(name, getattr(args, name), f"at least {least}")
    if lz_engine(CPU) == "torch":
        raise InvalidValue("engine", "cpp", "a compiler when the package was installed")
    rows = []
    with measuring() as progress:
        for batch in args.batches:
            for different in (False, True):
                progress(f"batch {batch}")
                rows.append(measured(batch, args.vocabulary, args.steps, different))
    found = {"rows": rows, "vocabulary": args.vocabulary, "steps": args.steps, **conditions()}
    title = f"a step of the LZ penalty: median of {args.steps}, in turns"
    return printed(found, args.json, table(title, COLUMNS, rows), shown(found))


if __name__ == "__main__":
    sys.exit(main())
