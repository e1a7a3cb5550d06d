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
    DeviceStep,
    Geometry,
    InvalidValue,
    Selecting,
    Step,
    check_number,
    over_group,
)


class AdamasLayer(Selecting):
    """Pages of one token; codes are made once, when a key is stored, four to a byte."""

    def __init__(self, geometry: Geometry, backend: Adamas) -> None:
        super().__init__(geometry, backend)
        g, self.backend = geometry, backend
        if g.D < 4 or g.D & (g.D - 1):
            raise InvalidValue("head size", g.D, "a power of two, at least 4")
        self.codes = self.slots("codes", (g.D // 4,), dtype=torch.uint8)
        self.shifts = torch.arange(0, 8, 2, device=g.device)
        byte = torch.arange(256, device=g.device)[:, None] >> self.shifts & 3
        self.distances = (byte[:, None] - byte).abs().sum(-1, dtype=torch.float32)
        matrix = torch.ones(1, 1, dtype=g.wide, device=g.device)
        while len(matrix) < g.D:
            matrix = torch.cat((torch.cat((matrix, matrix)), torch.cat((matrix, -matrix))), 1)
        self.hadamard = matrix / g.D**0.5

    def code(self, x: Tensor, threshold: float) -> Tensor:
        """Codes from 0 to 3 of the coordinates, (..., D) to (..., D / 4) bytes."""
        turned = x.to(self.geometry.wide) @ self.hadamard
        code = (turned > -threshold).long() + (turned > 0) + (turned > threshold)
        fours: Tensor = code.unflatten(-1, (-1, 4))
        return (fours << self.shifts).sum(-1).to(torch.uint8)

    def notice(self, k: Tensor, step: Step) -> None:
        self.codes.fit(self.k.capacity)
        codes = self.code(k, self.backend.threshold_k)
        if step.decode:
            at = step.past_tokens[:, None, None, None].expand_as(codes)
            self.codes.data.scatter_(2, at, codes)
        else:
            step.write(self.codes.data, step.past, codes)

    def choose(self, q: Tensor, step: Step) -> Choice:
        S = self.codes.capacity if isinstance(step, DeviceStep) else step.longest
        codes = self.codes.data[:, :, :S]
        B, Hkv, _, size = codes.shape
        query = self.code(q, self.backend.threshold_q * self.scaling).int()
        # What each value of each byte of a key adds to the nearness of the group's queries.
        table = -functional.embedding(query, self.distances).permute(0, 1, 3, 4, 2).flatten(0, 3)
        first = torch.arange(B * Hkv * size, dtype=torch.int32, device=q.device) * 256
        index = codes + first.view(B, Hkv, 1, size)
        near = functional.embedding_bag(index.flatten(0, 2), table, mode="sum")
        near, gqa = near.view(B, Hkv, S, -1).double(), self.backend.gqa
        if gqa == "query_head":
            near = near.transpose(2, 3).flatten(1, 2)
        else:  # a mean ranks as its sum does
            near = over_group(near, "sum" if gqa == "mean" else gqa, 3)
        slot, last = torch.arange(S, device=q.device), step.seen_tokens[:, None, None] - 1
        # Distances tie as a rule: among equals the older wins.
        rank = (near * S - slot).masked_fill_(slot > last, float("-inf"))
        rank, most = rank.masked_fill_(slot == last, float("inf")), min(self.quota, S)
        best, pages = rank.topk(most, sorted=False)
        live = best > float("-inf")
        return Choice(pages * live, live)

    def reads(self, seen: Counts) -> Counts:
        return np.minimum(seen, self.quota)

    def overhead(self, seen: Counts) -> Counts:
        """The codes in keys' worth."""
        codes = -(-seen * self.codes.width // self.k.width) * self.geometry.Hkv
        return np.where(seen <= self.quota, 0, codes)

    def row_bytes(self, seen: Counts) -> Counts:
        return super().row_bytes(seen) + seen * (self.geometry.Hkv * self.codes.width)


@dataclass(frozen=True, kw_only=True)
class Adamas(Backend):
    """Reads the current token and the budget - 1 others whose codes are nearest to the query's.

    Adamas, arXiv 2510.18413; the rule of the scripts of FibonaccciYan/Adamas, whose kernels measure
    another distance. A Hadamard matrix turns roped queries and keys, and a code of 2 bits tells
    which of -threshold, 0 and threshold a coordinate exceeds. A distance is the sum of the absolute
    differences of codes; of equals the older token is read. Where we differ: as in the kernels, the
    current token is always read. Their thresholds suit Llama; for Qwen3 they take 1.35 and 2.26.

    Args:
        budget: tokens a decode query may read, current token included.
        dense_layers: first layers left dense, as the authors do; exempt from the budget.
        threshold_q, threshold_k: of the coordinates of turned queries and keys; above 0.
        gqa: "max", "sum" or "mean" of the nearness to a KV head's query heads; or "query_head" for
            a set per query head.
    """

    name: ClassVar[str] = "adamas"
    source: ClassVar[str] = "Adamas: keys with near codes of 2 bits (arXiv 2510.18413)"
    layer_class = AdamasLayer
    choices: ClassVar = {"gqa": ("max", "sum", "mean", "query_head")}
    budget: int
    dense_layers: int = 2
    threshold_q: float = 10.0
    threshold_k: float = 10.0
    gqa: str = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("threshold_q", "threshold_k"):
            check_number(name, getattr(self, name), "a number above 0", above=0)
