"""Whether two stores hold the same runs, and whether what differs is rounding.

    python scripts/checks/compare_stores.py OLD NEW

Two versions, two engines or two batch sizes add up numbers in another order, and where two tokens
have nearly the same score another one may be chosen. For every run that both stores have, the
tokens are compared. Where they part, the common tokens are read once in the store's dtype and once
in float64, under the same backend, and the two scores that decided are printed beside what the
rounding of that step amounts to: the largest difference of any score between the two readings. The
gap of a tie is at most twice that.

Prints counts and every run that parts; exit code 1 if a run is in one store alone, or parts where
rounding cannot have decided.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import attention
from attention.testing.driving import prefill, step
from experiments.grid import models
from experiments.store.store import Record, Store
from lil import Trace


@dataclass(frozen=True)
class Parting:
    """One run whose tokens differ: `at` tokens are common, then each store has its own."""

    told: str
    cell: dict[str, Any]
    prompt: tuple[int, ...]
    common: tuple[int, ...]
    reused: int
    tokens: tuple[int, int]

    @property
    def at(self) -> int:
        """How many tokens are common."""
        return len(self.common)


def partings(old: Store, new: Store) -> tuple[int, list[Parting], list[str]]:
    """Equal runs, runs that part, and those one store alone has."""
    equal, found, alone = 0, [], []
    mine, theirs = ({record.id: record for record in store} for store in (old, new))
    for id_ in mine.keys() ^ theirs.keys():
        alone.append(_told(mine.get(id_) or theirs[id_]))
    for id_ in mine.keys() & theirs.keys():
        one, other = mine[id_], theirs[id_]
        if one.failed or other.failed:
            if one.failed and other.failed:
                equal += 1
            else:
                alone.append(_told(one))
            continue
        parting = _parting(one, one.trace(), other.trace())
        if parting is None:
            equal += 1
        else:
            found.append(parting)
    return equal, sorted(found, key=lambda parting: parting.told), sorted(alone)


def _told(record: Record) -> str:
    backend = record.meta["cell"]["backend"]
    return f"{backend['name']} {backend.get('budget') or ''} {record.meta['item_id']}"


def _parting(record: Record, one: Trace, other: Trace) -> Parting | None:
    # A run may have been cut earlier in one store; what both have counts.
    pairs = zip(one.new_ids, other.new_ids, strict=False)
    at = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
    if at == min(one.tokens, other.tokens):
        return None
    return Parting(
        _told(record),
        dict(record.meta["cell"]),
        one.prompt_ids,
        one.new_ids[:at],
        min(one.reused_tokens, other.reused_tokens, at),
        (one.new_ids[at], other.new_ids[at]),
    )


@torch.inference_mode()
def scores(
    model: Any, backend: Any, those: Sequence[Parting], engine: str = "auto"
) -> list[Tensor]:
    """What each token would score where these runs part, (V,) each, read as they were decoded."""
    found: dict[int, Tensor] = {}
    with backend.on(model, engine) as cache:
        # Known tokens were read with the prompt.
        prompts = [torch.tensor([*p.prompt, *p.common[: p.reused]]) for p in those]
        own = cache.new(prompts=[len(p.prompt) for p in those])
        logits = prefill(model, own, prompts)[:, -1]
        last = max(p.at - p.reused for p in those)
        for done in range(last + 1):
            found |= {i: logits[i].double() for i, p in enumerate(those) if p.at == p.reused + done}
            if done < last:
                column = [p.common[min(p.reused + done, p.at - 1)] if p.at else 0 for p in those]
                logits = step(model, own, torch.tensor(column))
    return [found[row] for row in range(len(those))]


def main(argv: list[str] | None = None) -> int:
    """The comparison; 0 if nothing but rounding differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", type=Path, help="folder of a sweep")
    parser.add_argument("new", type=Path, help="folder of another of the same runs")
    parser.add_argument("--rows", type=int, default=16, help="runs that are read together")
    args = parser.parse_args(argv)
    equal, found, alone = partings(Store(args.old), Store(args.new))
    print(f"{equal} runs equal, {len(found)} part, {len(alone)} in one store alone")
    for told in alone:
        print(f"in one store alone: {told}")
    groups = defaultdict(list)
    for parting in found:
        groups[json.dumps(parting.cell["backend"] | {"dtype": parting.cell["dtype"]})].append(
            parting
        )
    ties = 0
    for those in groups.values():
        cell = those[0].cell
        if cell["penalties"] or cell["sampling"]["temperature"]:
            print(f"not read again, with a penalty or sampled: {', '.join(p.told for p in those)}")
            continue
        params = {name: value for name, value in cell["backend"].items() if name != "name"}
        backend = attention.get(cell["backend"]["name"], **params)
        # A digest says with which weights, where these are not the stored ones.
        source = models.find(
            cell["model"], weights=cell["model_digest"].partition("+")[2] or "stored"
        )
        for start in range(0, len(those), args.rows):
            some = those[start : start + args.rows]
            read = [
                scores(models.load(source, dtype, "cpu").model, backend, some)
                for dtype in (cell["dtype"], "float64")
            ]
            for parting, plain, exact in zip(some, *read, strict=True):
                first, second = parting.tokens
                gap = abs(float(exact[first] - exact[second]))
                rounding = float((plain - exact).abs().max())
                tie = gap <= 2 * rounding
                ties += tie
                print(
                    f"{parting.told}: {parting.at} tokens common, then {first} or {second}; "
                    f"gap {gap:.2e}, rounding {rounding:.2e}: {'tie' if tie else 'NO TIE'}"
                )
    print(f"{ties} of {len(found)} partings are ties")
    return 0 if ties == len(found) and not alone else 1


if __name__ == "__main__":
    sys.exit(main())
