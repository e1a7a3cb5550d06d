"""DuoAttention: some KV heads see everything, the others the first tokens and a window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from attention.contract import (
    AUTO,
    Counts,
    Dropping,
    Full,
    Geometry,
    InvalidValue,
    KeepAll,
    Layer,
    Step,
    check_int,
    check_share,
    gpu,
)
from attention.methods.sink import Sink, SinkLayer

Gates = tuple[tuple[float, ...], ...]


class DuoLayer(Layer):
    """A layer with heads of both kinds: `parts` hold the retrieval and the streaming ones."""

    on_device = True

    def __init__(self, geometry: Geometry, backend: Duo) -> None:
        super().__init__(geometry, backend)
        g, streams = geometry, backend.streams[geometry.index]
        order = sorted(range(g.Hkv), key=lambda j: streams[j])
        self.variety = sum(streams)
        self.sizes = g.Hkv - self.variety, self.variety
        queries = [j * g.G + i for j in order for i in range(g.G)]
        # Where heads come from, by parts, and where they go back to.
        orders = order, queries, np.argsort(order), np.argsort(queries)
        self.order, self.queries, self.places, self.back = (
            torch.as_tensor(x, device=g.device) for x in orders
        )
        sinks: tuple[Tensor | None, Tensor | None] = None, None
        if g.sink_logits is not None:
            ordered = g.sink_logits[self.queries]
            sinks = ordered[: self.sizes[0] * g.G], ordered[self.sizes[0] * g.G :]
        shares = [
            replace(g, Hq=n * g.G, Hkv=n, sink_logits=own)
            for n, own in zip(self.sizes, sinks, strict=True)
        ]
        self.parts: tuple[Layer, Layer] = (
            KeepAll(shares[0], Full()),
            SinkLayer(shares[1], backend.streaming),
        )
        for i, part in enumerate(self.parts):
            self.state |= {f"{name} {i}": slots for name, slots in part.state.items()}

    def each(
        self, q: Tensor, k: Tensor, v: Tensor
    ) -> list[tuple[Layer, tuple[Tensor, Tensor, Tensor]]]:
        """Each part with its heads of a forward."""
        G, first = self.geometry.G, self.sizes[0]
        q, k, v = q.index_select(1, self.queries), *(x.index_select(1, self.order) for x in (k, v))
        everything = q[:, : first * G], k[:, :first], v[:, :first]
        return [
            (self.parts[0], everything),
            (self.parts[1], (q[:, first * G :], k[:, first:], v[:, first:])),
        ]

    def together(self, outs: Sequence[Tensor]) -> Tensor:
        """Outputs of the parts, (B, T, heads, D), as (B, T, Hq, D)."""
        return torch.cat(list(outs), 2).index_select(2, self.back)

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        B, D = len(q), v.shape[-1]
        outs = (x.decode(*qkv, scaling, step) for x, qkv in self.each(q, k, v))
        return self.together([out.reshape(B, 1, -1, D) for out in outs])

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        return self.together([x.prefill(*qkv, scaling, step) for x, qkv in self.each(q, k, v)])

    def check(self, step: Step) -> None:
        for part in self.parts:
            part.check(step)

    # On the device

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, scaling: float, counts: gpu.DeviceCounts
    ) -> Tensor:
        return self.together([x.step(*qkv, scaling, counts) for x, qkv in self.each(q, k, v)])

    def reserve(self, counts: gpu.DeviceCounts) -> None:
        for part in self.parts:
            part.reserve(counts)
        self.store, streaming = (part.store for part in self.parts)
        assert streaming is not None
        # A number of its own, under which kernels count what they read.
        self.parts[1].store = replace(streaming, index=~streaming.index)

    def release(self) -> None:
        self.store = None
        for part in self.parts:
            part.release()

    def restore(self) -> None:
        for part in self.parts:
            part.restore()

    def row_numbers(self, prompts: Counts) -> dict[str, Counts]:
        return self.parts[1].row_numbers(prompts)

    # Rows

    def select(self, index: Tensor) -> None:
        for part in self.parts:
            part.select(index)

    def replace(self, rows: Tensor, source: Layer, source_rows: Tensor) -> None:
        assert isinstance(source, DuoLayer)
        for part, other in zip(self.parts, source.parts, strict=True):
            part.replace(rows, other, source_rows)

    def clear(self, rows: Tensor) -> None:
        for part in self.parts:
            part.clear(rows)

    # Accounting and looking

    def reads_mean(self, seen: Counts) -> npt.NDArray[np.float64]:
        everything, few = (part.reads(seen) for part in self.parts)
        mean: npt.NDArray[np.float64] = few + (everything - few) * (
            self.sizes[0] / self.geometry.Hkv
        )
        return mean

    def cost(self, seen: Counts) -> Counts:
        return self.parts[0].cost(seen) + self.parts[1].cost(seen)

    def row_bytes(self, seen: Counts) -> Counts:
        return self.parts[0].row_bytes(seen) + self.parts[1].row_bytes(seen)

    def kept_positions(self, row: int, seen: int) -> Tensor:
        """-1 first in the heads that keep fewer tokens than others."""
        everything, few = (part.kept_positions(row, seen) for part in self.parts)
        few = functional.pad(few, (everything.shape[1] - few.shape[1], 0), value=-1)
        return torch.cat((everything, few)).index_select(0, self.places)


@dataclass(frozen=True, kw_only=True)
class Duo(Dropping):
    """Retrieval heads keep and read all; other KV heads `sinks` first tokens and the newest.

    DuoAttention, arXiv 2410.10819; mit-han-lab/duo-attention. A learned gate of each KV head tells
    whether it retrieves. The budget binds the streaming heads: the others read all, as layers do
    that are left dense. The authors read one token more than they keep, and break ties of gates by
    noise; here the later layer and head of equals streams.

    Args:
        budget: tokens a query of a streaming head may read, current token included.
        pattern: gates from 0 to 1, a row for each layer with keys, a number for each KV head; or
            the path of a file of them, such as the authors' `full_attention_heads.tsv`.
        sparsity: share of all heads that stream, those of the smallest gates; None to go by
            `threshold`.
        threshold: the smallest gate of a retrieval head, where `sparsity` is None.
        sinks: first tokens kept for ever, below `budget`; min(64, budget // 5) by default.
        keep_prompt: a row's prompt takes the place of `sinks` where it is longer.
    """

    name: ClassVar[str] = "duo"
    source: ClassVar[str] = "DuoAttention: retrieval and streaming heads (arXiv 2410.10819)"
    layer_class: ClassVar[type[Layer]] = DuoLayer
    budget: int
    pattern: Any
    sparsity: float | None = None
    threshold: float = 0.5
    sinks: int = AUTO

    def __post_init__(self) -> None:
        super().__post_init__()
        self._resolve("pattern", gates(self.pattern))
        check_share("threshold", self.threshold)
        if self.sparsity is not None:
            check_share("sparsity", self.sparsity)
        if self.sinks is AUTO:
            self._resolve("sinks", min(64, self.budget // 5))
        allowed = f"an integer from 0 to budget - 1 = {self.budget - 1}"
        if check_int("sinks", self.sinks, 0, allowed) >= self.budget:
            raise InvalidValue("sinks", self.sinks, allowed)

    @property
    def streams(self) -> tuple[tuple[bool, ...], ...]:
        """Which heads stream, by layer."""
        if self.sparsity is None:
            return tuple(tuple(gate < self.threshold for gate in row) for row in self.pattern)
        places = ((i, j) for i, row in enumerate(self.pattern) for j in range(len(row)))
        # Of equal gates those of later layers and heads come first.
        order = sorted(places, key=lambda at: (self.pattern[at[0]][at[1]], -at[0], -at[1]))
        # As many as lie below the quantile; its rounding is none of ours.
        count = math.ceil((len(order) - 1) * self.sparsity - 1e-9)
        gone = set(order[: len(order) if self.sparsity == 1 else count])
        return tuple(
            tuple((i, j) in gone for j in range(len(row))) for i, row in enumerate(self.pattern)
        )

    @property
    def streaming(self) -> Sink:
        """What streaming heads do."""
        keep = self.keep_prompt
        return Sink(budget=self.budget, sinks=self.sinks, positions="absolute", keep_prompt=keep)

    @property
    def keeps_all(self) -> bool:
        return not any(map(any, self.streams))

    rewindable = keeps_all

    @property
    def exact_until(self) -> float:
        return math.inf if self.keeps_all else self.budget

    def params(self) -> dict[str, Any]:
        return super().params() | {"pattern": [list(row) for row in self.pattern]}

    def check_heads(self, heads: Sequence[int]) -> None:
        if [len(row) for row in self.pattern] != list(heads):
            got = f"{len(self.pattern)} rows of {len(self.pattern[0])} gates"
            allowed = f"{len(heads)} rows, one a layer with keys, of {sorted(set(heads))} KV heads"
            raise InvalidValue("pattern", got, allowed)

    def layer(self, geometry: Geometry) -> Layer:
        streams = self.streams[geometry.index]
        if not any(streams):
            return KeepAll(geometry, Full())
        return SinkLayer(geometry, self.streaming) if all(streams) else DuoLayer(geometry, self)


def gates(pattern: object) -> Gates:
    """Gates from 0 to 1, of rows of numbers or a file of them."""
    try:
        if isinstance(pattern, str | PathLike):
            with open(pattern, encoding="utf-8") as file:
                values = np.loadtxt(file, ndmin=2)
        else:
            values = np.array(pattern, dtype=np.float64)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidValue("pattern", pattern, f"rows of as many gates each ({error})") from None
    if values.ndim != 2 or not values.size or not np.isfinite(values).all():
        allowed = "rows of finite gates, one a layer, or a file of them"
        raise InvalidValue("pattern", pattern, allowed)
    return tuple(tuple(row) for row in values.clip(0, 1).tolist())
