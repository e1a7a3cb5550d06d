"""Where the time of a decode step goes: the model, attention, its state, the loop's own parts.

    python scripts/bench/step_speed.py                    # the shipped reasoner, at 1 to 64 rows
    python scripts/bench/step_speed.py --batches 32 --threads 1,2 --backends full,quest

model: its forward without attention; read: keys, values and page summaries; state: the rest of
attention; pen, det, samp, stat: penalties, detectors, sampling, costs of rows; loop: what is left;
book: share of the last two. Floors: weights read, or multiplied with every row, whichever takes
longer, and bytes read, at the speed of one large operation in this run.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from attention_speed import bandwidth
from programs import Column, counts, measuring, names, one_message, parser, printed, table
from programs import conditions as shown

import lil
from attention.engines import ENGINES, chosen
from attention.errors import InvalidValue
from attention.patching.cache import AttentionCache
from experiments.bench import conditions, device_name, method, seconds
from experiments.grid import data, models
from experiments.grid.data import MOST_MADE
from experiments.grid.presets import load
from lil.decoding.batch import BatchPenalties
from lil.decoding.lane import Lane
from lil.decoding.ledger import Ledger
from lil.decoding.loop import DecodeLoop
from lil.decoding.sampling import Sampler

#: Parts of a step, in the order of a table; "loop" is what no other part is.
PARTS = (
    "model",
    "reading",
    "state",
    "penalties",
    "detectors",
    "sampling",
    "statistics",
    "loop",
)
#: What an engine does for that part.
READING = (
    "attend",
    "attend_with_mass",
    "attend_pages",
    "best_pages",
    "pages_to_read",
    "likeliest",
)
#: The part that prompts are read in, which is no part of a step.
PROMPT = "prompt"
#: What a step costs beside computing: nobody's arithmetic.
BOOKKEEPING = ("statistics", "loop")

_POINT = (
    Column("thr", "threads"),
    Column("B", "batch"),
    Column("backend", "backend", words=True),
)
#: Of a row: its parts, and the floors of two of them.
COLUMNS = (
    *_POINT,
    Column("step", "ms", ".2f"),
    Column("model", "model", ".2f"),
    Column("read", "reading", ".2f"),
    Column("state", "state", ".2f"),
    Column("pen", "penalties", ".2f"),
    Column("det", "detectors", ".2f"),
    Column("samp", "sampling", ".2f"),
    Column("stat", "statistics", ".2f"),
    Column("loop", "loop", ".2f"),
    Column("book", "bookkeeping", ".0%"),
    Column("tok/s", "tokens_per_s", ",.0f"),
)
FLOORS = (
    *_POINT,
    Column("model", "model", ".2f"),
    Column("floor", "model_floor_ms", ".2f"),
    Column("reading", "reading", ".2f"),
    Column("floor", "reading_floor_ms", ".2f"),
)


@dataclass
class Clock:
    """Seconds by part; what runs inside another part is charged to itself alone."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _parts: list[str] = field(default_factory=list)
    _since: float = 0.0

    def switch(self) -> None:
        """Charge the time since the last switch to the part at work."""
        now = time.perf_counter()
        if self._parts:
            self.seconds[self._parts[-1]] += now - self._since
        self._since = now

    @contextmanager
    def at(self, part: str) -> Iterator[None]:
        """Let a part work; within the reading of prompts everything is that."""
        self.switch()
        self._parts.append(PROMPT if PROMPT in self._parts else part)
        try:
            yield
        finally:
            self.switch()
            self._parts.pop()

    def wrapped(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as a part."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.at(part):
                return function(*args, **kwargs)

        return timed


@dataclass(frozen=True)
class Case:
    """One point: backend by name, rows, threads."""

    backend: str
    batch: int
    threads: int


def step(
    backends: Sequence[str] = ("full", "sink", "h2o", "quest", "infllm"),
    budget: int = 128,
    batches: Sequence[int] = (1, 16, 32, 64),
    threads: Sequence[int] = (1,),
    steps: int = 150,
    engine: str = "auto",
    model: str = models.REASONER,
    dataset: str = "hard",
    penalties: Sequence[str] = (),
    detectors: Sequence[str] = ("guardian",),
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run `lil.decode` and tell its steps apart into parts.

    Reading is what an engine does: keys, values and page summaries read and reduced. State is the
    rest of attention: writing keys, choosing, evicting, lengths. Statistics are the costs of rows.
    Penalties, detectors and sampling are those of `lil.decode`, the loop is what is left of a step.
    The model is its forward without attention.

    Args:
        backends: names; those with a budget get `budget`.
        budget: tokens a decode query may read.
        batches: rows, one point each; so many problems are begun at once.
        threads: of torch, one point each.
        steps: decode steps a point; the first quarter is not timed.
        engine: what decode queries read with.
        model: by name or folder.
        dataset: whose prompts are decoded.
        penalties, detectors: by name, with their default parameters.
        progress: told what is measured next.

    Raises:
        InvalidValue: a name, a count or a prompt that cannot be used.
    """
    if steps < 4:
        raise InvalidValue("steps", steps, "at least 4")
    loaded = models.load(models.find(model), "float32", "cpu")
    chosen(engine, loaded.model.device, loaded.model.dtype)
    built = {name: method(name, budget) for name in backends}
    options: dict[str, Any] = {
        "engine": engine,
        "token_bytes": loaded.token_bytes,
        "penalties": [lil.penalties.get(name) for name in penalties],
        "detectors": [lil.detectors.get(name) for name in detectors],
    }
    if max(batches) > MOST_MADE:
        raise InvalidValue("batches", max(batches), f"at most {MOST_MADE}")
    config = load("demo", {"models": [model], "datasets": [dataset], "limit": max(batches)})
    items = next(iter(data.load_all(config).values())).items
    prompts = [item.prompt_ids(loaded.tokenizer) for item in items]
    if len(prompts) < max(batches):
        raise InvalidValue("batches", max(batches), f"at most {len(prompts)}, as in {dataset}")
    cases = [Case(name, batch, n) for n in threads for batch in batches for name in built]
    before, rows, speeds = torch.get_num_threads(), [], {}
    try:
        for case in cases:
            torch.set_num_threads(case.threads)
            if case.threads not in speeds:
                speeds[case.threads] = (bandwidth("cpu"), _arithmetic())
            progress(f"{case.backend}, batch {case.batch}, threads {case.threads}")
            rows.append(
                _row(case, loaded, prompts, built[case.backend], options, steps)
                | _floors(loaded.model, case, speeds[case.threads])
            )
    finally:
        torch.set_num_threads(before)
    for row in rows:
        row["reading_floor_ms"] = 1e3 * row["read_bytes"] / speeds[row["threads"]][0]
    return {
        "rows": rows,
        "budget": budget,
        "engine": chosen(engine, loaded.model.device, loaded.model.dtype).name,
        "model": model,
        "dataset": dataset,
        "steps": steps,
        "penalties": list(penalties),
        "detectors": list(detectors),
        "bandwidth_bytes_per_s": {n: found[0] for n, found in speeds.items()},
        "multiply_adds_per_s": {n: found[1] for n, found in speeds.items()},
        **{name: value for name, value in conditions().items() if name != "threads"},
        "device": device_name("cpu"),
    }


def _row(
    case: Case,
    loaded: models.LoadedModel,
    prompts: Sequence[Sequence[int]],
    backend: Any,
    options: dict[str, Any],
    steps: int,
) -> dict[str, Any]:
    clock, done = Clock(), 0
    counted = {"steps": 0, "rows": 0}
    first = steps // 4

    def on_step(_: int) -> None:
        nonlocal done
        done += 1
        if done == first:
            clock.switch()
            clock.seconds.clear()
            counted.update(steps=0, rows=0)

    advance = DecodeLoop._advance

    def counting(self: DecodeLoop, batch: Any, rows: Any, newcomers: bool = False) -> None:
        with clock.at(PROMPT if newcomers else "loop"):
            advance(self, batch, rows, newcomers)
        if not newcomers:
            counted["steps"] += 1
            counted["rows"] += len(rows)

    with ExitStack() as stack:
        for owner, name, part in _timed(loaded.model, options["engine"]):
            function = clock.wrapped(part, getattr(owner, name))
            stack.enter_context(mock.patch.object(owner, name, function))
        stack.enter_context(mock.patch.object(DecodeLoop, "_advance", counting))
        stack.enter_context(clock.at("loop"))
        traces = lil.decode(
            loaded.model,
            loaded.tokenizer,
            prompts[: case.batch],
            backend=backend,
            max_new_tokens=steps + 1,
            batch_size=case.batch,
            on_step=on_step,
            beyond_positions=True,  # what is asked is time, not text
            **options,
        )
    parts = {part: 1e3 * clock.seconds[part] / counted["steps"] for part in PARTS}
    total = sum(parts.values())
    head = loaded.model.config.get_text_config()
    size = getattr(head, "head_dim", None) or head.hidden_size // head.num_attention_heads
    keys = sum(trace.checks[-1].keys_read for trace in traces) / max(t.tokens for t in traces)
    return {
        "backend": case.backend,
        "batch": case.batch,
        "threads": case.threads,
        "ms": total,
        **parts,
        "bookkeeping": sum(parts[part] for part in BOOKKEEPING) / total,
        "tokens_per_s": 1e3 * counted["rows"] / counted["steps"] / total,
        "mean_rows": counted["rows"] / counted["steps"],
        "read_bytes": 2 * keys * size * loaded.model.dtype.itemsize,
    }


def _timed(model: Any, engine: str) -> list[tuple[Any, str, str]]:
    """What is wrapped: owner, name, part."""
    reads = type(ENGINES[chosen(engine, model.device, model.dtype).name])
    return [
        (type(model), "forward", "model"),
        (AttentionCache, "attend", "state"),
        *((reads, name, "reading") for name in READING),
        (BatchPenalties, "__call__", "penalties"),
        (Lane, "judge", "detectors"),
        (Lane, "see", "detectors"),
        (Sampler, "draw", "sampling"),
        (AttentionCache, "row_stats", "statistics"),
        (Ledger, "add", "statistics"),
        (DecodeLoop, "_check", "statistics"),
    ]


def _arithmetic(size: int = 512, repeats: int = 20) -> float:
    """Multiplications and additions a second of a product of matrices, the best of some."""
    x, y = (torch.ones(size, size) for _ in range(2))
    return float(size**3 / min(seconds(lambda: x @ y, "cpu") for _ in range(repeats)))


def _floors(model: Any, case: Case, speed: tuple[float, float]) -> dict[str, float]:
    """The least time of the model's own part: its weights read, or multiplied with every row."""
    weights = sum(p.numel() for p in model.parameters())
    read = weights * model.dtype.itemsize / speed[0]
    return {"model_floor_ms": 1e3 * max(read, weights * case.batch / speed[1])}


@one_message
def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    flags = parser(__doc__)
    flags.add_argument("--backends", type=names, default=["full", "sink", "h2o", "quest", "infllm"])
    flags.add_argument("--budget", type=int, default=128, help="tokens a query may read (128)")
    flags.add_argument("--batches", type=counts, default=[1, 16, 32, 64], help="rows (1,16,32,64)")
    flags.add_argument("--threads", type=counts, default=[1], help="of torch (1)")
    flags.add_argument("--steps", type=int, default=150, help="a quarter is not timed (150)")
    flags.add_argument("--engine", default="auto", help="cpp, triton, flash, torch, or auto")
    flags.add_argument("--model", default="reasoner", help="name or folder (reasoner)")
    flags.add_argument("--dataset", default="hard", help="whose prompts are decoded (hard)")
    flags.add_argument("--penalties", type=names, default=[], help="names (none)")
    flags.add_argument("--detectors", type=names, default=["guardian"], help="names (guardian)")
    args = flags.parse_args(argv)
    options = {name: value for name, value in vars(args).items() if name != "json"}
    with measuring() as progress:
        found = step(**options, progress=progress)
    parts = table(f"milliseconds of a decode step at budget {args.budget}", COLUMNS, found["rows"])
    floors = table("floors of two parts, milliseconds", FLOORS, found["rows"])
    return printed(found, args.json, parts, floors, shown(found))


if __name__ == "__main__":
    sys.exit(main())
