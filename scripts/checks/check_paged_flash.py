"""Holds sparse attention over FlashAttention's paged kernel to attention computed in float64.

    python scripts/checks/check_paged_flash.py                           # on a GPU of capability 9
    python scripts/checks/check_paged_flash.py --quick                   # fewer cases
    python scripts/checks/check_paged_flash.py --device cpu --stand-in   # without either

Ragged requests go through one layer, prompts in chunks beside decode queries, one of them read in
full and one put back, over blocks that others used before. Of every decode query these are checked:

- its table lists the tokens that the method reads whatever they are, and as many whole blocks of
  the others as it may choose;
- the blocks are those worth most by the keys as they are stored, in float64; others have to be
  worth as much within 1e-4 of the largest worth, which is a tie in float32;
- what the kernel gives is attention over that table: no further from float64 than twice the largest
  error of plain torch in the same dtype over the same tokens.

So are the outputs of tokens that are read in full. On a GPU the steps run with torch's debug mode
in which whatever waits for the device raises, except planning, which an engine does ahead.

Each case prints one JSON object, and the last line counts them. Exit code 1 if a case failed, 2
without a device or the kernel.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "bench" / "serving")]

from paged_checking.paged_requests import Request, Served, Step, requests, serve  # noqa: E402
from paged_checking.paged_truth import Errors, listed, rule, worth  # noqa: E402
from paged_layers import (  # noqa: E402
    Heads,
    Kernel,
    MissingError,
    angles_of,
    compared_by,
    kernel_of,
    layer_of,
    place,
    rope_of,
)

from lil.serving.blocks import policy_of  # noqa: E402

#: Of the largest worth: what sums in float32 may leave between blocks that are worth the same.
TIE = 1e-4
DTYPES = ("bfloat16", "float16")
HEADS = (Heads(2, 2, 64), Heads(8, 4, 128))
BLOCKS = (16, 32)


def policies(block: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Methods and their parameters, by the name of a case."""
    infllm = {
        "budget": 10 * block + 5,
        "n_init": block,
        "n_local": 4 * block + 5,
        "topk": 4,
        "block": block,
        "repr_topk": block,
        "far_position": '"absolute"',
    }
    return {
        "sink": ("sink", {"budget": 9 * block + 9, "sinks": 2 * block, "positions": '"absolute"'}),
        "window": ("window", {"budget": 10 * block - 3}),
        "quest": ("quest", {"budget": 8 * block}),
        "quest, max": ("quest", {"budget": 12 * block, "gqa": '"max"'}),
        "infllm": ("infllm", infllm),
        "infllm, heads": ("infllm", infllm | {"selection": '"kv_head"'}),
    }


@dataclass
class Found:
    """What was seen of decode queries.

    Attributes:
        decode_queries: that read less than everything.
        wrong_tables: tables that list other tokens than the method reads whatever is chosen.
        choices: sets of blocks that were chosen.
        choices_that_differ: of them, from those in float64.
        wrong_choices: of those, which are no ties.
        worth_apart: the largest difference of worth, as a share of the largest worth.
    """

    decode_queries: int = 0
    wrong_tables: int = 0
    choices: int = 0
    choices_that_differ: int = 0
    wrong_choices: int = 0
    worth_apart: float = 0.0


@dataclass
class Watch:
    """Looks at every step of a case."""

    name: str
    numbers: dict[str, Any]
    block: int
    heads: Heads
    angles: Tensor
    told: list[dict[str, Any]]
    sparse: Errors
    full: Errors
    found: Found = field(default_factory=Found)

    def look(self, step: Step) -> None:
        """Compare what a step gave with what it had to give."""
        self._read_in_full(step)
        calls = len(self.told)
        if calls != (len(step.found) > 0):
            raise AssertionError(
                f"{len(step.found)} decode queries called the kernel {calls} times"
            )
        if not calls:
            return
        call, N, shape = self.told.pop(), len(step.found), self.heads
        folded = call["k"].shape[2] == 1
        if len(call["block_table"]) != N * (shape.Hkv if folded else 1):
            raise AssertionError(f"{N} queries have {len(call['block_table'])} tables")
        both, read = listed(call, step.cache, folded)
        mine = step.found.token
        q, out = (
            torch.stack([x[at] for at in mine.tolist()]).view(len(both), -1, shape.G, shape.D)
            for x in (step.q, step.out)
        )
        self.sparse.see(out, q, both, read, shape)
        self._tables(step, call, folded)

    def _read_in_full(self, step: Step) -> None:
        Hkv, G, D = self.heads.Hkv, self.heads.G, self.heads.D
        begin = np.cumsum(step.new) - step.new
        for row, one in enumerate(step.rows):
            count = int(step.found.full[row])
            if not count:
                continue
            some, seen = slice(begin[row], begin[row] + count), one.past + count
            q, out = (
                x[some].view(count, Hkv, G, D).permute(1, 0, 2, 3).reshape(1, Hkv, count * G, D)
                for x in (step.q, step.out)
            )
            both = torch.cat((one.k[:seen], one.v[:seen]), dim=-1).transpose(0, 1)[None]
            at = torch.arange(seen, device=q.device)
            causal = (at <= at[seen - count :, None]).repeat_interleave(G, dim=0)
            self.full.see(out, q, both, causal, self.heads)

    def _tables(self, step: Step, call: dict[str, Any], folded: bool) -> None:
        """Compare tables with the method, token by token."""
        tables, lengths = call["block_table"].cpu().numpy(), call["seqused_k"].cpu().numpy()
        left, Hkv = call["window_size"][0], self.heads.Hkv
        sets = Hkv if folded else 1
        for n, row in enumerate(step.found.row.tolist()):
            one, seen = step.rows[row], int(step.found.seen[n])
            always, competing, wins = rule(self.name, self.numbers, self.block, seen)
            number_of = {block: at for at, block in enumerate(one.owned)}
            worths = self._worths(step, n, competing) if wins else None
            self.found.decode_queries += 1
            for head in range(sets):
                at = n * sets + head
                blocks, wrong = tables[at], False
                if folded:
                    wrong |= bool((blocks % Hkv != head).any())
                    blocks = blocks // Hkv
                numbers = np.array([number_of.get(block, -1) for block in blocks.tolist()])
                tokens = (numbers[:, None] * self.block + np.arange(self.block)).ravel()
                tokens = tokens[: lengths[at]]
                if left >= 0:
                    tokens = tokens[max(0, len(tokens) - 1 - left) :]
                inside = tokens[(tokens >= 0) & (tokens < seen)]
                read = np.zeros(seen, dtype=bool)
                read[inside] = True
                # Each token once, and none of another request.
                wrong |= len(inside) != len(tokens) or int(read.sum()) != len(tokens)
                more = read & ~always
                chosen = np.unique(np.flatnonzero(more) // self.block)
                wrong |= not bool(read[always].all()) or len(chosen) != wins
                wrong |= int(more.sum()) != wins * self.block
                self.found.wrong_tables += wrong
                if worths is not None and not wrong:
                    mine = worths[head if len(worths) > 1 else 0]
                    self._choice(mine, np.searchsorted(competing, chosen), wins)

    def _worths(self, step: Step, n: int, competing: Any) -> Any:
        one, seen = step.rows[int(step.found.row[n])], int(step.found.seen[n])
        Hkv, G, D = self.heads.Hkv, self.heads.G, self.heads.D
        owned = torch.tensor(one.owned, device=step.cache.device)
        first, end = int(competing[0]), int(competing[-1]) + 1
        keys = step.cache[owned[first:end]][..., :D]
        q = step.q[int(step.found.token[n])].view(Hkv, G, D)
        begin = first * self.block
        each = worth(self.name, self.numbers, q, keys, begin, self.angles[:seen])
        return each.cpu().numpy()

    def _choice(self, worths: Any, chosen: Any, wins: int) -> None:
        best = np.argsort(-worths, kind="stable")[:wins]
        self.found.choices += 1
        missed, taken = np.setdiff1d(best, chosen), np.setdiff1d(chosen, best)
        if not len(missed):
            return
        self.found.choices_that_differ += 1
        apart = float((worths[missed].max() - worths[taken].min()) / np.abs(worths).max())
        self.found.worth_apart = max(self.found.worth_apart, apart)
        self.found.wrong_choices += apart > TIE


@dataclass(frozen=True)
class Case:
    """What is computed: a name of `policies`, a dtype, heads, and tokens of a block."""

    policy: str
    dtype: str
    heads: Heads
    block: int


def run(
    case: Case, kernel: Kernel, device: str, stretch: int, guard: bool
) -> tuple[Watch, Served, list[Request]]:
    """All requests of a case.

    Args:
        case: what is computed.
        kernel: of `kernel_of`.
        device: where.
        stretch: of `requests`.
        guard: whether a step that waits for the device raises.
    """
    torch.manual_seed(11)
    dtype, heads, block = getattr(torch, case.dtype), case.heads, case.block
    every = [one.drawn(heads, dtype, device) for one in requests(block, stretch)]
    angles = angles_of(max(one.end for one in every), heads.D, device)
    name, numbers = policies(block)[case.policy]
    text = f"{name}({', '.join(f'{key} = {value}' for key, value in numbers.items())})"
    layer = layer_of(kernel, policy_of(text, block), heads, rope_of(angles), told=True)
    assert layer.told is not None
    watch = Watch(*(name, numbers, block, heads, angles, layer.told), Errors(dtype), Errors(dtype))
    with torch.inference_mode():
        served = serve(every, layer, heads, 64 * stretch, guard, watch.look)
    served.compared_by = compared_by(layer)
    return watch, served, every


def checked(case: Case, kernel: Kernel, device: str, stretch: int) -> dict[str, Any]:
    """The JSON object of a case; one that breaks off is one that failed, with the reason."""
    begin, on_gpu = perf_counter(), device != "cpu"
    told: dict[str, Any] = asdict(case)
    waited: bool | str | None = False if on_gpu else None
    try:
        try:
            watch, served, every = run(case, kernel, device, stretch, guard=on_gpu)
        except RuntimeError as error:
            if not on_gpu or "synchroniz" not in str(error):
                raise
            waited = str(error)
            watch, served, every = run(case, kernel, device, stretch, guard=False)
    except Exception as error:
        return {**told, "failed": True, "reason": f"{type(error).__name__}: {error}"[:2000]}
    found, sparse, full = watch.found, watch.sparse, watch.full
    good = (
        not served.padding_written
        and sparse.largest <= sparse.bar
        and full.largest <= full.bar
        and found.decode_queries > 0
        and (found.choices > 0) == (case.policy not in ("sink", "window"))
        and found.wrong_tables == found.wrong_choices == 0
        and not isinstance(waited, str)
        and (served.guarded > 0) == on_gpu
    )
    return {
        **told,
        "requests": len(every),
        "longest": max(one.end for one in every),
        "steps": served.steps,
        "steps_that_may_not_wait": served.guarded,
        **asdict(found),
        "largest_error": sparse.largest,
        "bar": sparse.bar,
        "tokens_in_full": sum(one.end for one in every) - found.decode_queries,
        "largest_error_in_full": full.largest,
        "bar_in_full": full.bar,
        "padding_written": served.padding_written,
        "compared_by": served.compared_by,
        "waited": waited,
        "seconds": round(perf_counter() - begin, 2),
        "failed": not good,
    }


def cases(quick: bool, stand_in: bool) -> list[Case]:
    """All; `quick` leaves out a dtype and has every block with one shape."""
    names = tuple(policies(BLOCKS[0]))
    dtypes = ("float32",) if stand_in else DTYPES[:1] if quick else DTYPES
    shapes = list(product(HEADS, BLOCKS))
    if quick:
        shapes = [(HEADS[0], BLOCKS[0])] if stand_in else list(zip(HEADS, BLOCKS, strict=True))
    return [Case(n, dtype, *shape) for shape in shapes for dtype in dtypes for n in names]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cases and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--quick", action="store_true", help="fewer cases, shorter on a CPU")
    parser.add_argument(
        "--stand-in", action="store_true", help="plain torch in float32 in place of the kernel"
    )
    options = parser.parse_args(arguments)
    try:
        kernel = kernel_of(options.stand_in)
    except MissingError as error:
        print(f"check_paged_flash: {error}", file=sys.stderr)
        return 2
    stretch = 4 if options.device == "cuda" else 1 if options.quick else 2
    failed = 0
    every = cases(options.quick, options.stand_in)
    for case in every:
        found = checked(case, kernel, options.device, stretch)
        failed += found["failed"]
        print(json.dumps(found), flush=True)
    told = {"cases": len(every), "failed": failed}
    print(json.dumps(told | place(options.stand_in)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
