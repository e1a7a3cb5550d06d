"""StreamingLLM: the first tokens and a sliding window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attention.contract import (
    Counts,
    Dropping,
    Geometry,
    Layer,
    Ring,
    Step,
    Turn,
    check_int,
    devices,
    gpu,
)


class SinkLayer(Ring):
    """Sinks in the first slots, the window in a ring behind them."""

    on_device = True

    def __init__(self, geometry: Geometry, backend: Sink) -> None:
        super().__init__(geometry, backend, backend.budget, backend.sinks)
        self.keeps_prompt = backend.keep_prompt
        # How many sinks the buffers have room for.
        self.most_sinks = self.limit - 1 if self.keeps_prompt else backend.sinks
        self.turns = backend.turns_keys
        # Sink keys as the model roped them: turning these anew each step leaves no error behind.
        size = (geometry.D,)
        self.first = self.slots("first", size, limit=self.most_sinks) if self.turns else None

    def stored(self, counts: gpu.DeviceCounts) -> gpu.Store:
        self.first_as_roped(range(len(self.sinks)))
        turn = self.geometry.rope.table(counts.tokens, self.k.data) if self.turns else None
        more = {"first": self.number(counts, "sinks"), "turn": turn}
        return self.store_of(self.k, self.v, counts.seen, self.limit, "ring", **more)

    def row_numbers(self, prompts: Counts) -> dict[str, Counts]:  # noqa: ARG002
        return {"sinks": self.sinks}

    def first_as_roped(self, rows: Sequence[int], back: bool = False) -> None:
        """The sink keys as the model roped them take their slots, or come `back` from there."""
        if self.first is None:
            return
        most = min(int(self.sinks.max(initial=0)), self.k.capacity)
        self.first.fit(most)
        own = np.zeros((len(self.sinks), most), dtype=np.bool_)
        own[rows] = np.arange(most) < self.sinks[rows, None]
        own_slots = devices.put(own, self.geometry.device)[:, None, :, None]
        first, there = (slots.data[:, :, :most] for slots in (self.first, self.k))
        target, source = (first, there) if back else (there, first)
        target.copy_(torch.where(own_slots, source, target))

    def restore(self) -> None:
        self.first_as_roped(range(len(self.sinks)), back=True)

    def check(self, step: Step) -> None:
        self.take_prompts(step)
        self.check_budget(min(step.longest, self.limit))

    def write(self, k: Tensor, v: Tensor, step: Step) -> None:
        super().write(k, v, step)
        if step.memo("new sinks", lambda: bool((step.past < self.sinks).any())):
            self.remember(self.k.data, step)
        self.turn_sinks(step.seen, step)

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        self.take_prompts(step)
        self.turn_sinks(step.past, step)
        return super().prefill(q, k, v, scaling, step)

    def cut(self, keys: Tensor, values: Tensor, counts: Counts, step: Step) -> None:
        if (step.past < self.sinks).any():
            self.remember(keys, step)
        super().cut(keys, values, counts, step)

    def take_prompts(self, step: Step) -> None:
        """What stays of prompts that are being read are sinks from now on."""
        if self.keeps_prompt and (step.past < step.prompt).any():
            self.sinks = np.maximum(self.sinks, self.staying(step.prompt))

    def remember(self, keys: Tensor, step: Step) -> None:
        """Store sink keys that arrived in this forward; `keys` has them in its first slots."""
        if self.first is None:
            return
        most = int(self.sinks.max())
        self.first.fit(most)
        n = min(most, keys.shape[2])
        fresh = step.memo("fresh", lambda: step.tensor(step.past < self.sinks)[:, None, None, None])
        self.first.data[:, :, :n] = torch.where(fresh, keys[:, :, :n], self.first.data[:, :, :n])

    def turn_sinks(self, seen: Counts, step: Step) -> None:
        """Move the sink keys to directly before the window of a row that has seen this much."""
        first = self.first
        if first is None:
            return

        def turning() -> tuple[int, Turn] | None:
            """How many sinks there are, and by what they are turned; None while they stay."""
            if not (seen > self.limit).any():
                return None
            most = int(self.sinks.max())
            end = np.maximum(seen - self.limit, 0)[:, None] + np.arange(most)
            longest = max(step.longest, int(end.max()) + 1)
            at = step.tensor(end)
            return most, self.geometry.rope.turn(range(most), at, first.data, longest)

        turning_now = step.memo("turn", turning)
        if turning_now is None:
            return
        (most, turn), engine = turning_now, self.geometry.engine
        sinks = first.data if first.capacity == most else first.data[:, :, :most]
        there = self.k.data[:, :, :most]
        if not self.keeps_prompt:
            engine.rotate(sinks, turn, there)
            return
        own = step.memo("sinks", lambda: step.tensor(np.arange(most) < self.sinks[:, None]))
        # Behind a row's own sinks its window begins.
        there.copy_(torch.where(own[:, None, :, None], engine.rotate(sinks, turn), there))

    def replace(self, rows: Tensor, source: Layer, source_rows: Tensor) -> None:
        super().replace(rows, source, source_rows)
        if self.store is not None:
            self.first_as_roped(rows.tolist())

    def row_bytes(self, seen: Counts) -> Counts:
        g = self.geometry
        extra = np.minimum(seen, self.sinks) if self.turns else 0
        return super().row_bytes(seen) + extra * (g.Hkv * g.D * g.dtype.itemsize)


@dataclass(frozen=True, kw_only=True)
class Sink(Dropping):
    """Keeps the first `sinks` tokens and the last budget - sinks, the same in all layers and heads.

    StreamingLLM, arXiv 2309.17453; mit-han-lab/streaming-llm. The paper and its code store unroped
    keys and rope the whole cache at every step; here window keys stay as they are and the sink
    keys alone are turned forward by the number of evicted tokens, which gives the same distances.
    The authors evict after attending, so their queries read one token more than the budget.

    Args:
        budget: tokens a decode query may read, current token included; more than `sinks`.
        sinks: first tokens kept for ever; 0 makes a sliding window.
        keep_prompt: what stays of a row's prompt takes the place of `sinks` where it is longer.
        positions: "cache", distances are those inside the cache (the paper); "absolute", keys keep
            the position they were seen at.
    """

    name: ClassVar[str] = "sink"
    source: ClassVar[str] = "StreamingLLM: first tokens and a window (arXiv 2309.17453)"
    layer_class: ClassVar[type[Layer]] = SinkLayer
    choices: ClassVar = {"positions": ("cache", "absolute")}
    sinks: int = 4
    positions: str = "cache"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("sinks", self.sinks, 0)
        check_int("budget", self.budget, self.sinks + 1, f"an integer above sinks = {self.sinks}")

    @property
    def turns_keys(self) -> bool:
        return self.positions == "cache" and (self.sinks > 0 or bool(self.keep_prompt))
