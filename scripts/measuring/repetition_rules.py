"""Our detectors beside vLLM's own `repetition_detection`: the loops and honest texts they end.

    python scripts/measuring/repetition_rules.py            # two minutes
    python scripts/measuring/repetition_rules.py --json

vLLM's rule ends an output whose last tokens are one pattern of `min_pattern_size` to
`max_pattern_size` tokens, `min_count` times. It is computed here, on the same tokens as ours:
outputs of the reasoner that ships, honest or driven into loops by a repetition penalty below 1, and
the texts of `scripts/checks/check_ordinary.py`, where a token is a word.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

import lil
from experiments.reasoner import checkpoint_path, problem
from lil.penalties import RepetitionPenalty

sys.path.append(str(Path(__file__).parents[1] / "checks"))
from check_ordinary import texts

#: `min_pattern_size`, `max_pattern_size`, `min_count`.
RULES = [(1, 20, 2), (1, 20, 4), (1, 20, 10), (5, 50, 3)]
DETECTORS = {
    "cycle": lil.Cycle(),
    "recurrence": lil.Recurrence(),
    "guardian(f=100)": lil.Guardian(f=100),
    "cycle(outside=0)": lil.Cycle(outside=0),
    "recurrence(outside=0)": lil.Recurrence(outside=0),
}
CAP, PROMPTS, EVERY = 600, 48, 4
Ends = Callable[[Sequence[bytes]], int | None]


def rule(least: int, most: int, count: int) -> Ends:
    """Tokens at which vLLM's rule ends a text; None where it does not."""

    def ends(pieces: Sequence[bytes]) -> int | None:
        known: dict[bytes, int] = {}
        ids = np.array([known.setdefault(piece, len(known)) for piece in pieces])
        found = []
        for size in range(least, most + 1):
            again = np.concatenate([[0], ids[size:] == ids[:-size], [0]]).astype(int)
            edges = np.flatnonzero(np.diff(again))
            begun, over = edges[::2], edges[1::2]
            long = begun[over - begun >= size * (count - 1)]
            if len(long):
                found.append(int(long[0]) + size * count)
        return min(found, default=None)

    return ends


def watching(detector: lil.Detector, prompt: bytes) -> Ends:
    """Tokens at which a detector ends a text behind a prompt."""

    def ends(pieces: Sequence[bytes]) -> int | None:
        verdict = detector.watch(prompt).update(pieces)
        return None if verdict is None else verdict.step

    return ends


def outputs() -> dict[str, list[tuple[bytes, list[bytes]]]]:
    """What the reasoner says: prompt and tokens of each output, honest ones and loops."""
    path = checkpoint_path()
    reasoner = (
        AutoModelForCausalLM.from_pretrained(path).eval(),
        AutoTokenizer.from_pretrained(path),
    )
    prompts = [problem("medium", "test", i).prompt for i in range(PROMPTS)]
    loops = [RepetitionPenalty(penalty=0.5, include_prompt=True)]
    found: dict[str, list[tuple[bytes, list[bytes]]]] = {}
    for name, penalties in ("honest", []), ("driven into loops", loops):
        traces = lil.decode(
            *reasoner, prompts, max_new_tokens=CAP, batch_size=16, penalties=penalties
        )
        # A loop is an output that does not end; an honest one does.
        kept = [one for one in traces if (one.finish == "eos") is (name == "honest")]
        found[f"reasoner, {name}"] = [(one.prompt_bytes, list(one.pieces)) for one in kept]
    return found


def ordinary() -> dict[str, list[tuple[bytes, list[bytes]]]]:
    """Texts that nobody would call a loop, and those that never end, by kind."""
    found: dict[str, list[tuple[bytes, list[bytes]]]] = {}
    for kind, _, pieces in texts():
        of = found.setdefault("loops" if kind == "loops" else kind, [])
        of.append((b"", pieces))
    return {kind: of if len(of) < 40 else of[::EVERY] for kind, of in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    told: dict[str, Any] = {}
    for kind, of in (outputs() | ordinary()).items():
        rows: dict[str, Any] = {}
        for numbers in RULES:
            name = "repetition_detection({}-{} tokens, {} times)".format(*numbers)
            rows[name] = [rule(*numbers)(pieces) for _, pieces in of]
        for name, detector in DETECTORS.items():
            rows[name] = [watching(detector, prompt)(pieces) for prompt, pieces in of]
        told[kind] = {"texts": len(of), "ended_at": rows}
    if args.json:
        print(json.dumps(told))
        return 0
    table = Table(title="Texts ended, and the median of tokens they then had")
    table.add_column("")
    for kind, one in told.items():
        table.add_column(f"{kind}, {one['texts']}", justify="right")
    for name in next(iter(told.values()))["ended_at"]:
        cells = []
        for one in told.values():
            ended = [at for at in one["ended_at"][name] if at is not None]
            cells.append(f"{len(ended)} at {statistics.median(ended):.0f}" if ended else "0")
        table.add_row(name, *cells)
    Console(width=200).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
