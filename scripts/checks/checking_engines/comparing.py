"""Engines and the oracle on the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from attention.core.step import Occupancy
from attention.engines import QKV, AttentionOutput, Engine
from checking_engines.cases import Case, Pages, Slots
from tests.attention.oracles.decode_query import attended

#: Allowed of outputs, and of probabilities and log-sum-exps, which are float32 in every dtype.
OUT = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SUMS = 2e-5
# The plain engine rounds logits to the model's dtype.
ROUNDED = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 1e-1}


@dataclass
class Result:
    """Worst difference of one engine, operation, value and dtype; the case it is from."""

    engine: str
    operation: str
    what: str
    dtype: str
    allowed: float
    cases: int = 0
    difference: float = 0.0
    case: Case | None = None

    @property
    def fits(self) -> bool:
        return self.difference <= self.allowed  # False for NaN


Differences = dict[str, float]


def worst(
    engine: Engine, device: torch.device, dtype: torch.dtype, given: Iterable[Case]
) -> list[Result]:
    """A line for each operation and each of out, lse and probs."""
    lines: dict[tuple[str, str], Result] = {}
    for case in given:
        if case.scale > 1 and dtype != torch.float32:
            continue
        operation, ask = _asked(case)
        for what, difference in ask(engine, device, dtype, case).items():
            allowed = OUT[dtype] if what == "out" else SUMS
            if engine.name == "torch":
                allowed = ROUNDED[dtype]
            new = Result(engine.name, operation, what, str(dtype)[6:], allowed)
            line = lines.setdefault((operation, what), new)
            line.cases += 1
            if not difference <= line.difference:  # NaN is worse than any
                line.difference, line.case = difference, case
    return list(lines.values())


def _asked(case: Case) -> tuple[str, Callable[..., Differences]]:
    return ("attend", _slots) if isinstance(case, Slots) else ("attend_pages", _pages)


def _slots(engine: Engine, device: torch.device, dtype: torch.dtype, case: Slots) -> Differences:
    (B, most), draw = (len(case.lengths), max(case.lengths)), _Drawn(device, dtype, case)
    q = draw.queries(B, case.H, case.M, case.D)
    # Neither capacity nor strides are alike, and what lies behind a row is not to be read.
    k = draw(B, case.H, most + 9, case.D)[:, :, : most + 2]
    v = draw(B, most + 2, case.H, case.D).transpose(1, 2)
    for b, length in enumerate(case.lengths):
        for x in (k, v):
            x[b, :, length:] = draw.dirt(engine)
    sinks = draw(case.H * case.M) if case.sinks else None
    held = Occupancy(np.array(case.lengths), device)
    output = engine.attend(QKV(q, k, v, sinks), held, probs=True, lse=True)
    bare = engine.attend(QKV(q, k, v, sinks), held)
    assert output.probs is not None
    gap = {"out": _gap(bare.out, output.out.double().cpu().numpy(), 0.0), "lse": 0.0, "probs": 0.0}
    for b, h in product(range(B), range(case.H)):
        ours = None if sinks is None else sinks[h * case.M : (h + 1) * case.M]
        n = case.lengths[b]
        want = attended(q[b, h], k[b, h], v[b, h], range(n), ours)
        _compare(gap, output, b, h, (want[0], want[2]))
        probs = np.pad(want[1], ((0, 0), (0, most - n)))
        gap["probs"] = _gap(output.probs[b, h], probs, gap["probs"])
    return gap


def _pages(engine: Engine, device: torch.device, dtype: torch.dtype, case: Pages) -> Differences:
    draw, page, total = _Drawn(device, dtype, case), case.page, case.U + 2
    q = draw.queries(case.B, case.H, case.M, case.D)
    k, v = (draw(case.B, case.Hkv, total * page, case.D) for _ in range(2))
    pages, counts = draw.table(case, total)
    read = [
        [_slots_read(pages[b, h], counts[b, h], page) for h in range(case.H)] for b in range(case.B)
    ]
    share = case.H // case.Hkv
    for b, kv in product(range(case.B), range(case.Hkv)):
        those = {s for h in range(kv * share, (kv + 1) * share) for s in read[b][h]}
        unread = [s for s in range(total * page) if s not in those]
        for x in (k, v):
            x[b, kv, unread] = draw.dirt(engine)
    sinks = draw(case.H * case.M) if case.sinks else None
    output = engine.attend_pages(
        QKV(q, k, v, sinks), pages.to(device), counts.to(device), page, lse=True
    )
    gap = {"out": 0.0, "lse": 0.0}
    for b, h in product(range(case.B), range(case.H)):
        ours = None if sinks is None else sinks[h * case.M : (h + 1) * case.M]
        want = attended(q[b, h], k[b, h // share], v[b, h // share], read[b][h], ours)
        _compare(gap, output, b, h, (want[0], want[2]))
    return gap


def _slots_read(pages: Tensor, counts: Tensor, page: int) -> list[int]:
    both = zip(pages.tolist(), counts.tolist(), strict=True)
    return [p * page + i for p, n in both for i in range(n)]


def _compare(
    gap: Differences, output: AttentionOutput, b: int, h: int, want: tuple[np.ndarray, np.ndarray]
) -> None:
    assert output.lse is not None
    for what, ours, oracle in zip(("out", "lse"), (output.out, output.lse), want, strict=True):
        gap[what] = _gap(ours[b, h], oracle, gap[what])


def _gap(output: Tensor, want: np.ndarray, before: float) -> float:
    """The larger difference; NaN where something is not finite that should be, or the reverse."""
    have = output.detach().cpu().double().numpy()
    finite = np.isfinite(want)
    if math.isnan(before) or not np.array_equal(have[~finite], want[~finite]):
        return math.nan
    if not finite.any():
        return before
    have, want = have[finite], want[finite]
    if not np.isfinite(have).all():
        return math.nan
    return max(before, float(np.abs(have - want).max() / max(1.0, np.abs(want).max())))


class _Drawn:
    """Random numbers of one case, the same on every device and for every engine."""

    def __init__(self, device: torch.device, dtype: torch.dtype, case: Case) -> None:
        self.device, self.dtype, self.case = device, dtype, case
        self.random = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.random).to(self.device, self.dtype)

    def queries(self, *shape: int) -> Tensor:
        """Scaled: logits around 1 but where the case wants large ones."""
        drawn = torch.randn(*shape, generator=self.random) * self.case.scale * shape[-1] ** -0.5
        return drawn.to(self.device, self.dtype)

    def dirt(self, engine: Engine) -> float:
        """What is put where nothing is to be read; others multiply it by a probability of 0."""
        return math.nan if engine.name == "triton" else 1e4

    def table(self, case: Pages, total: int) -> tuple[Tensor, Tensor]:
        """Pages and counts, (B, H, U)."""
        shape = (case.B, case.H, case.U)
        drawn = [
            torch.randperm(total, generator=self.random)[: case.U]
            for _ in range(shape[0] * shape[1])
        ]
        pages = torch.stack(drawn).view(shape)
        if case.shared:
            pages = pages[:1, :1].expand(shape)
        counts = torch.randint(0, case.page + 1, shape, generator=self.random)
        number = torch.arange(case.U)
        if case.held == "last":
            counts = (number == case.U - 1).long().expand(shape)
        elif case.held == "ragged":
            sets = torch.arange(shape[0] * shape[1]).view(*shape[:2], 1)
            tokens = sets * case.U * case.page // (shape[0] * shape[1])
            counts = (tokens - number * case.page).clamp(0, case.page)
        return pages, counts


def table(results: Iterable[Result]) -> str:
    """One line each, in plain text: nothing but torch and numpy is needed where this runs."""
    rows = [("engine", "operation", "value", "dtype", "cases", "difference", "allowed")]
    for r in results:
        numbers = (str(r.cases), f"{r.difference:.1e}", f"{r.allowed:.0e}")
        rows.append((r.engine, r.operation, r.what, r.dtype, *numbers))
    widths = (7, 12, 5, 8, -5, -10, -7)
    return "\n".join(
        "  ".join(x.ljust(w) if w > 0 else x.rjust(-w) for x, w in zip(row, widths, strict=True))
        for row in rows
    )
