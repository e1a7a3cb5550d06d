"""Base class of methods that drop many tokens at once, every so many steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
import torch
from torch import Tensor

from attention.core.kernels import dense, group
from attention.core.slots import Slots
from attention.core.step import Counts, Cut, DeviceStep, HostNumber, Occupancy, Step
from attention.engines import QKV, gpu
from attention.errors import InvalidValue, check_int
from attention.layers.bounded import Bounded
from attention.layers.layer import Geometry, Layer, Method, fixed


class Compressing(Bounded):
    """Rows grow until they hold `budget` tokens, and are then cut to `target`.

    Slots are in order of age. Rows that hold as many tokens are cut together, so that `rank`, which
    a method answers, sees no empty slots. The slots worth least are lost, among equals the newest.

    Args:
        observers: newest tokens whose queries are remembered for `rank`.

    Attributes:
        room: tokens of the budget that prompts leave in the rows that are ranked, (R, 1, 1).
    """

    room: Tensor

    def __init__(self, geometry: Geometry, backend: Method, observers: int = 0) -> None:
        super().__init__(geometry, backend)
        self.observers = observers
        # Scaled queries of the newest tokens; the slot is the position modulo `observers`.
        self.queries = self.slots("queries", (geometry.D,), heads=geometry.Hq, limit=observers)
        self.stored_tokens: Counts = np.zeros(geometry.B, dtype=np.int64)
        self.last_read = self.stored_tokens
        self._row_counts |= {"stored_tokens": 0, "last_read": 0}

    @abstractmethod
    def rank(self, k: Tensor, q: Tensor, rows: Tensor) -> Tensor:
        """What each slot of rows without empty slots is worth, (R, Hkv, S); inf where it must stay.

        It follows from tensors alone: a captured step repeats its operations, numbers included.

        Args:
            k: (R, Hkv, S, D), oldest token first.
            q: scaled queries of the newest tokens, oldest first, (R, Hkv, G, window, D).
            rows: which rows these are, (R,).
        """

    def learn(self, probs: Tensor, step: Step) -> None:
        """Take in the probabilities (B, Hkv, G, S) of a decode query over the first S slots."""

    def reread(self, q: Tensor, step: Step) -> None:
        """Learn what decode steps would have from a prefill's tokens, stored, behind the prompt.

        Scaled queries are (B, Hq, T, D).
        """

    def columns(self, q: Tensor, step: Step) -> Iterator[tuple[Tensor, Occupancy, Tensor]]:
        """Probabilities of the decode queries that `reread` gets, and slots, column by column.

        The third are tokens seen, (B,); 0 for rows without a decode query in the column.
        """
        g, generated = self.geometry, step.seen - np.maximum(step.prompt, step.past)
        for column in range(step.T - int(generated.max()), step.T):
            late = step.T - 1 - column
            occupancy = step.holding(
                np.maximum(self.stored_tokens + step.new - late, 1), ("columns", column)
            )
            query = group(q[:, :, column : column + 1], g.Hkv, 1.0)
            qkv = QKV(query, self.k.data, self.v.data, g.sink_logits)
            probs = g.engine.attend(qkv, occupancy, probs=True).probs
            assert probs is not None
            yield probs, occupancy, (step.seen_tokens - late) * step.generated()[:, column]

    def target(self, seen: int, room: int) -> int:  # noqa: ARG002
        """Tokens a row keeps that has seen so many, where a prompt leaves the method `room`."""
        return self.limit - interval(room)

    def window(self, room: int) -> int:  # noqa: ARG002
        """How many of the observers score tokens where the method has `room` tokens."""
        return self.observers

    def spared(self, prompt: Counts) -> Counts:
        """First tokens of rows that stay, where so many of their prompts do."""
        return prompt

    def least_room(self) -> int:
        # Some token can be kept for its score.
        return next(room for room in count(4) if self.window(room) < room - interval(room))

    def check(self, step: Step) -> None:  # noqa: ARG002
        self.check_budget(int(self.stored_tokens.max()) + 1)

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        self.check(step)
        g = self.geometry
        scaled = q * scaling
        self.append(scaled, k, v, step)
        learns = type(self).learn is not Compressing.learn
        query = scaled.view(step.rows, g.Hkv, g.G, g.D)
        qkv = QKV(query, self.k.data, self.v.data, g.sink_logits)
        out, probs, _ = g.engine.attend(
            qkv, step.holding(self.stored_tokens + 1, "compressing"), probs=learns
        )
        if probs is not None:
            self.learn(probs, step)
        for cut in self.settle(step):
            (before,) = self.shorten_together(cut, step.inputs(cut), [self])
            self.before |= zip(cut.rows.tolist(), before, strict=True)
        return out

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, scaling: float, counts: gpu.DeviceCounts
    ) -> Tensor:
        if not self.hooked or type(self).learn is Compressing.learn:
            return super().step(q, k, v, scaling, counts)
        assert self.store is not None
        splits = gpu.attend_splits(counts, self.store, q, k, v, scaling, logits=True)
        out = gpu.join_splits(counts, splits)
        with self.hooking(len(q)):
            self.learn(gpu.probabilities(counts, splits), DeviceStep(counts.seen[: len(q)]))
        return out

    def rehearse(self, step: DeviceStep) -> None:
        g = self.geometry
        if type(self).remembered is not Compressing.remembered:
            raise HostNumber("`remembered`, which brings what the host computes")
        probs = self.k.data.new_zeros((step.rows, g.Hkv, g.G, self.k.capacity), dtype=g.wide)
        self.learn(probs, step)

    def stored(self, counts: gpu.DeviceCounts) -> gpu.Store:
        position, queries = fixed(self.position, self.queries)
        lengths, observed = self.number(counts, "stored", True), queries if self.observers else None
        self.number(counts, "prompt")
        where = (self.k, self.v, lengths, self.limit)
        return self.store_of(*where, position=position, queries=observed)

    def row_numbers(self, prompts: Counts) -> dict[str, Counts]:
        return {"stored": self.stored_tokens, "prompt": prompts}

    def settle(self, step: Step) -> Sequence[Cut]:
        stored_tokens: Counts = self.stored_tokens + 1
        self.stored_tokens, self.last_read, self.before = stored_tokens, stored_tokens, {}
        full = step.memo(("full", self.limit), lambda: np.flatnonzero(stored_tokens >= self.limit))
        return self.due(full, step) if len(full) else ()

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        self.append(q * scaling, k, v, step)
        most = int((self.stored_tokens + step.new).max())
        keys, values = (x.data[:, :, :most] for x in (self.k, self.v))
        square = not self.stored_tokens.any() and not step.padded
        last = step.last_visible(self.stored_tokens, "compressing")
        out = dense(q, keys, values, scaling, last, square, self.geometry.sink_logits)
        if (step.seen > step.prompt).any():
            self.reread(q * scaling, step)
        self.stored_tokens, self.before = self.stored_tokens + step.new, {}
        for r in np.flatnonzero(self.stored_tokens >= self.limit):
            for cut in self.due(np.array([r]), step):
                self.shorten_together(cut, step.inputs(cut), [self])
        self.trim()
        return out

    def trim(self) -> None:
        for slots in self.per_slot:
            if slots.capacity > max(self.limit, int(self.stored_tokens.max())):
                slots.resize(self.limit)

    def append(self, q: Tensor, k: Tensor, v: Tensor, step: Step) -> None:
        """Write the new tokens of each row behind those held, and remember their scaled queries."""
        most = int((self.stored_tokens + step.new).max())
        if self.k.capacity < most:
            for slots in self.per_slot:
                slots.fit(most)
        self.queries.fit(self.observers)
        arriving = (*self.incoming(k, v, step), *self.remembered(step))
        if step.decode:
            behind = step.flat(self.stored_tokens, k.shape[1], self.k.capacity, "compressing")
            self.geometry.engine.put(arriving, behind)
        else:
            for slots, new in arriving:
                step.write(slots.data, self.stored_tokens, new)
        if not self.observers:
            return
        if step.decode:
            slot = step.memo("slot of queries", lambda: step.past % self.observers)
            at = step.flat(slot, q.shape[1], self.observers, "queries")
            self.geometry.engine.put(((self.queries, q),), at)
            return
        for r, (past, new) in enumerate(zip(step.past, step.new, strict=True)):
            n = min(int(new), self.observers)
            ring = step.tensor(np.arange(past + new - n, past + new) % self.observers)
            self.queries.data[r, :, ring] = q[r, :, step.T - n :]

    def remembered(self, step: Step) -> Sequence[tuple[Slots, Tensor]]:  # noqa: ARG002
        """Memories, and what the new tokens bring to them, (B, Hkv, T, ...)."""
        return ()

    def due(self, full: Counts, step: Step) -> Sequence[Cut]:
        """Count that these rows, of as many tokens each, keep `target`; how they are to be cut."""
        # What is cut follows from lengths, which are the same in all layers.
        cuts = step.memo(("cuts", type(self), full.tobytes()), lambda: self.cuts(full, step))
        self.stored_tokens = self.stored_tokens.copy()
        for cut in cuts:
            self.stored_tokens[cut.rows] = cut.most
        return cuts

    def shorten_together(self, cut: Cut, inputs: Tensor, layers: Sequence[Layer]) -> list[Tensor]:
        own = [layer for layer in layers if isinstance(layer, Compressing)]
        return [layer.keep(cut, inputs, layer.worth(cut, inputs)) for layer in own]

    def worth(self, cut: Cut, inputs: Tensor) -> Tensor:
        """What slots of P rows are worth that are to be cut, (P, Hkv, S)."""
        g, S = self.geometry, cut.size
        P = len(inputs) // (3 + g.Hq * cut.window)
        at, spared, of = inputs[: 3 * P].view(3, P)
        shape = (P, g.Hkv, g.G, cut.window, g.D)
        queries = self.queries.flat.index_select(0, inputs[3 * P :]).view(shape)
        keys = self.k.data.index_select(0, at)
        self.room = self.limit - spared[:, None, None]
        worth = self.rank(keys if keys.shape[2] == S else keys[:, :, :S], queries, at)
        if self.keeps_prompt:
            # Nothing of a prompt was ever dropped, so it is in the first slots.
            slot = torch.arange(S, device=at.device)
            worth = worth.masked_fill(slot < spared[:, None, None], float("inf"))
        return worth.index_select(0, of)

    def keep(self, cut: Cut, inputs: Tensor, worth: Tensor) -> Tensor:
        """Keep what is worth most of P rows; their positions before, (P, Hkv, S)."""
        g, S = self.geometry, cut.size
        at = inputs[: len(worth)]
        before = self.position.data.index_select(0, at)[:, :, :S]
        # Of one row all have the same bits: what is written twice is written alike.
        g.engine.keep_best(self.per_slot, at, worth, cut.most)
        if self.store is not None:
            self.store.lengths.index_fill_(0, at, cut.most)
        return before

    def cuts(self, full: Counts, step: Step) -> list[Cut]:
        """Rows that are cut together: all of them, or each alone where they are not cut alike."""
        prompts = self.staying(step.prompt[full])
        sizes = [
            (self.target(seen, self.limit - prompt), self.window(self.limit - prompt))
            for seen, prompt in zip(step.seen[full].tolist(), prompts.tolist(), strict=True)
        ]
        every, S, result = np.arange(len(full)), int(self.stored_tokens[full[0]]), []
        places = [every] if len(set(sizes)) == 1 else list(every[:, None])
        for place in places:
            rows, (most, window) = full[place], sizes[place[0]]
            ring = (step.seen[rows, None] - window + np.arange(window)) % max(self.observers, 1)
            heads = (rows[:, None] * self.geometry.Hq + np.arange(self.geometry.Hq))[:, :, None]
            flat = (heads * self.observers + ring[:, None]).reshape(len(rows), -1)
            result.append(Cut(rows, S, most, window, flat, self.spared(prompts[place])))
        return result

    # Rows

    def select(self, index: Tensor) -> None:
        super().select(index)
        before, every = self.before, enumerate(index.tolist())
        self.before = {r: before[old].clone() for r, old in every if old in before}

    def replace(self, rows: Tensor, source: Layer, source_rows: Tensor) -> None:
        super().replace(rows, source, source_rows)
        self.renumber("last_read", rows, 0)  # no query has read from here

    # Accounting: what is held depends on where prompts were cut, not on lengths alone

    def kept(self, seen: Counts) -> Counts:  # noqa: ARG002
        return self.stored_tokens

    def reads(self, seen: Counts) -> Counts:  # noqa: ARG002
        return self.last_read

    def row_bytes(self, seen: Counts) -> Counts:
        g = self.geometry
        queries = np.minimum(seen, self.observers) * (g.Hq * g.D * g.dtype.itemsize)
        total: Counts = super().row_bytes(seen) + queries
        return total

    def kept_positions(self, row: int, seen: int) -> Tensor:  # noqa: ARG002
        return self.position.data[row, :, : int(self.stored_tokens[row])].long()

    def read_positions(self, row: int, seen: int) -> Tensor:  # noqa: ARG002
        position = self.before.get(row, self.position.data[row])
        return position[:, : int(self.last_read[row])].long()


def interval(budget: int) -> int:
    """Tokens dropped at once by the methods that score them: min(128, budget // 4)."""
    return min(128, budget // 4)


def check_window(budget: int, window: int, buffer: int | None = None) -> None:
    """Check that some token outside the window can be kept for its score.

    Args:
        buffer: tokens dropped at once, if not `interval(budget)`.
    """
    if buffer is not None:
        check_int("budget", budget, check_int("window", window, 1) + 2)
        most = budget - window - 1
        if check_int("buffer", buffer, 1) > most:
            raise InvalidValue("buffer", buffer, f"at most budget - window - 1 = {most}")
        return
    check_int("budget", budget, 4)
    check_int("window", window, 1)
    most = budget - interval(budget)
    if window >= most:
        raise InvalidValue("window", window, f"less than budget - interval = {most}")
