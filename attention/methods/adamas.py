"""Adamas: all tokens stay, the current query reads those whose codes of 2 bits are nearest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from attention.contract import (
    Backend,
    Choice,
    Counts,
    Geometry,
    InvalidValue,
    Selecting,
    Step,
    check_choice,
    check_number,
    devices,
    fixed,
    gpu,
    over_group,
)

GQA = ("max", "sum", "mean", "query_head")
# Codes in a word of 64 bits, and the lower halves of its fields of 2, 4 and 8 bits.
CODES = 32
ONES, PAIRS, FOURS = 0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F
BYTES = 0x00FF00FF00FF00FF
# The largest head of which the sums of a word's bytes stay below 256.
LARGEST_HEAD = 512
# Words compared at once on a CPU, so that they stay in its cache.
WORDS_AT_ONCE = 1 << 16
LEAST = torch.iinfo(torch.int64).min


class AdamasLayer(Selecting):
    """Pages of one token; codes are made once, when a key is stored."""

    on_device = True

    def __init__(self, geometry: Geometry, backend: Adamas) -> None:
        super().__init__(geometry, backend)
        D, self.backend = geometry.D, backend
        if D & (D - 1) or D > LARGEST_HEAD:
            raise InvalidValue("head size", D, f"a power of two, at most {LARGEST_HEAD}")
        words = -(-D // CODES)
        self.codes = self.slots("codes", (words,), dtype=torch.int64)
        matrix = torch.ones(1, 1, dtype=geometry.wide, device=geometry.device)
        while len(matrix) < D:
            matrix = torch.cat((torch.cat((matrix, matrix)), torch.cat((matrix, -matrix))), 1)
        self.hadamard = matrix / D**0.5

    def code(self, x: Tensor, threshold: float) -> Tensor:
        """Packed codes from 0 to 3 of the coordinates, (..., D) to (..., words)."""
        turned = x.to(self.hadamard.dtype) @ self.hadamard
        edges = (turned > -threshold, turned > 0, turned > threshold)
        code = torch.stack(edges, -1).sum(-1, dtype=torch.uint8)
        code = functional.pad(code, (0, -code.shape[-1] % CODES)).view(*code.shape[:-1], -1, 4)
        code = code[..., 0] | code[..., 1] << 2 | code[..., 2] << 4 | code[..., 3] << 6
        return code.view(torch.int64)

    def scores(self, q: Tensor, codes: Tensor) -> Tensor:
        """Minus the distances of keys, whole numbers in float32, (B, H, S).

        Args:
            q: not scaled, (B, Hq, 1, D).
            codes: (B, Hkv, S, words).
        """
        g, gqa = self.geometry, self.backend.gqa
        query = self.code(q, self.backend.threshold_q).view(len(q), g.Hkv, g.G, -1, 1)
        # Where the query's code is 1 or 2, the other of these differs in both bits, but by 1.
        between = (query ^ query >> 1) & ONES
        size, parts = codes.shape[2], []
        if devices.is_synchronous(codes.device):
            size = max(256, WORDS_AT_ONCE // query.numel())
        for start in range(0, codes.shape[2], size):
            part = codes[:, :, start : start + size]
            x = part.transpose(2, 3).contiguous()[:, :, None] ^ query
            x &= (x & between).bitwise_left_shift_(1).bitwise_not_()
            for bits, mask in ((2, PAIRS), (4, FOURS)):
                upper = (x >> bits).bitwise_and_(mask)
                x = x.bitwise_and_(mask).add_(upper)
            x = x.sum(3)
            x = (x & BYTES).add_((x >> 8).bitwise_and_(BYTES)).mul_(0x0001000100010001) >> 48
            score = -x.to(torch.float32)
            own = gqa == "query_head"
            parts.append(score.flatten(1, 2) if own else over_group(score, gqa, 2))
        return torch.cat(parts, -1)

    def notice(self, k: Tensor, step: Step) -> None:
        self.codes.fit(step.longest)
        codes = self.code(k, self.backend.threshold_k)
        if step.decode:
            at = step.flat(step.past, k.shape[1], self.codes.capacity, "codes")
            self.geometry.engine.put(((self.codes, codes),), at)
        else:
            step.write(self.codes.data, step.past, codes)

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        self.query = q  # not scaled
        return super().decode(q, k, v, scaling, step)

    def choose(self, q: Tensor, step: Step) -> Choice:  # noqa: ARG002
        S = step.longest - 1
        score = self.scores(self.query, self.codes.data[:, :, :S])
        slot, last = torch.arange(S, device=score.device), step.seen_tokens[:, None, None] - 1
        # Distances tie as a rule: among equals the older wins.
        rank = (score.long() * S - slot).masked_fill_(slot >= last, LEAST)
        best, pages = rank.topk(min(self.quota - 1, S), sorted=False)
        pages = torch.cat((pages, last.expand(-1, score.shape[1], 1)), -1)
        live = functional.pad(best > LEAST, (0, 1), value=True)
        return Choice(pages, live, live.long())

    def selected(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scaling: float,  # noqa: ARG002
        counts: gpu.DeviceCounts,
    ) -> tuple[Tensor, Tensor] | tuple[None, None]:
        keys, values, codes = (x[: len(q)] for x in fixed(self.k, self.v, self.codes))
        live, seen = counts.live[: len(q), None, None, None] > 0, counts.seen[: len(q)].long()
        arriving = ((codes, self.code(k, self.backend.threshold_k)), (keys, k), (values, v))
        for data, new in arriving[: 1 if counts.dense else 3]:
            at = seen.clamp(max=data.shape[2] - 1)[:, None, None, None].expand_as(new)
            data.scatter_(2, at, torch.where(live, new, data.gather(2, at)))
        if counts.dense:
            return None, None
        table, read = gpu.choices().select(
            self.scores(q, codes), counts.seen, counts.live, self.quota - 1
        )
        return table, read

    def reads(self, seen: Counts) -> Counts:
        return np.minimum(seen, self.quota)

    def overhead(self, seen: Counts) -> Counts:
        """The codes in keys' worth."""
        g = self.geometry
        codes = -(-seen * self.codes.width // (g.D * g.dtype.itemsize)) * g.Hkv
        return np.where(seen <= self.quota, 0, codes)

    def row_bytes(self, seen: Counts) -> Counts:
        codes: Counts = seen * (self.geometry.Hkv * self.codes.width)
        return super().row_bytes(seen) + codes


@dataclass(frozen=True, kw_only=True)
class Adamas(Backend):
    """Reads the current token and the budget - 1 others whose codes are nearest to the query's.

    Adamas, arXiv 2510.18413; the rule of FibonacciYan/Adamas' kernels. Roped queries and keys are
    turned by a Hadamard matrix, and each coordinate becomes a code of 2 bits: which of -threshold,
    0 and threshold it exceeds. A distance is the sum of the absolute differences of codes; among
    equals the older token is read. The authors choose per query head; here one set is chosen per
    KV head, or one per query head as they do. Their thresholds suit Llama's keys; for Qwen3 they
    take 1.35 and 2.26.

    Args:
        budget: tokens a decode query may read, current token included.
        dense_layers: first layers left dense, as the authors do; exempt from the budget.
        threshold_q, threshold_k: of the coordinates of turned queries and keys; above 0.
        gqa: how nearness to the G query heads of a KV head becomes one: "max", which is the least
            distance, "sum" or "mean"; or "query_head" for a set per query head.
    """

    name: ClassVar[str] = "adamas"
    source: ClassVar[str] = "Adamas: keys with near codes of 2 bits (arXiv 2510.18413)"
    layer_class = AdamasLayer
    budget: int
    dense_layers: int = 2
    threshold_q: float = 10.0
    threshold_k: float = 10.0
    gqa: str = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("threshold_q", "threshold_k"):
            check_number(name, getattr(self, name), "a number above 0", above=0)
        check_choice("gqa", self.gqa, GQA)
