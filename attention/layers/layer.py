"""The state of one attention layer: the base class of all methods, and the one that keeps all."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from attention.core.kernels import accumulator, dense, group
from attention.core.ropes import Rope
from attention.core.slots import Slots
from attention.core.step import Counts, Cut, DeviceStep, Step
from attention.engines import QKV, Engine, gpu
from attention.errors import BudgetExceeded, InvalidValue
from attention.layers import rehearsal


@dataclass(frozen=True)
class Geometry:
    """What a layer must know about its model."""

    method: str  # name of the backend, for messages
    index: int  # number of the layer
    B: int  # rows at first; selecting rows changes them
    Hq: int
    Hkv: int
    D: int
    dtype: torch.dtype
    device: torch.device
    rope: Rope
    model_window: int | None = None  # tokens a query sees, where the model itself slides
    # The model's own further logits in each softmax, (Hq,); None in most models. They take their
    # share of the probability, in what a method learns too.
    sink_logits: Tensor | None = field(default=None, compare=False, repr=False)
    # What decode queries read keys and values with.
    engine: Engine = field(default=Engine(), compare=False)
    windows: tuple[int | None, ...] = ()  # `model_window` of all layers that hold keys

    def __deepcopy__(self, memo: object) -> Geometry:
        return self  # frozen, and the model's tensors and modules are not ours to copy

    @property
    def G(self) -> int:  # noqa: N802
        """Query heads per KV head."""
        return self.Hq // self.Hkv

    @property
    def grouped_sinks(self) -> Tensor | None:
        """`sink_logits` by KV head, (Hkv, G, 1, 1)."""
        return None if self.sink_logits is None else self.sink_logits.view(self.Hkv, self.G, 1, 1)

    @property
    def wide(self) -> torch.dtype:
        """dtype of accumulators."""
        return accumulator(self.dtype)


class Method(Protocol):
    """What caches and layers need of a backend."""

    @property
    def name(self) -> str: ...
    @property
    def layer_class(self) -> type[Layer]: ...
    @property
    def budget(self) -> int | None: ...
    @property
    def dense_layers(self) -> int: ...
    @property
    def exact_until(self) -> float: ...
    @property
    def turns_keys(self) -> bool: ...
    @property
    def keeps_all(self) -> bool: ...
    @property
    def rewindable(self) -> bool: ...
    def params(self) -> dict[str, Any]: ...
    def check_heads(self, heads: Sequence[int], groups: Sequence[int]) -> None: ...
    def layer_budgets(self, windows: Sequence[int | None]) -> dict[int, int]: ...
    def choosing_layers(self, windows: Sequence[int | None]) -> tuple[int, ...]: ...
    def build(self, geometry: Geometry) -> Layer: ...


class Layer(ABC):
    """Keys, values and method state of all rows in one layer.

    `budget` is None where the layer is exempt (dense first layers, full attention). The counting
    methods answer from the numbers of tokens seen, (B,) on the host, so that accounting costs no
    device time; `read_positions` and `kept_positions` look at the state itself.
    """

    is_compileable = False  # asked by transformers of each layer of a cache
    keeps_all = False  # every token a row has seen is held, so that `tokens` can answer
    rewindable = False  # `crop` is exact for any row, however long it is
    cut_together = False  # all layers are cut behind the last one, and hold prompts until then
    keeps_prompt: bool | int = False  # what stays of prompts, see `Dropping.keep_prompt`
    # Whether `step` does what `decode` does in this very class by kernels: a subclass must say so
    # again. In others it calls their hooks, where its base class has any.
    on_device = False
    # What layers of one class and backend differ in, where they do not all keep and read alike.
    variety: Hashable = None
    reads_all = False  # decode queries read everything, as in dense layers, whatever the budget is
    # Tokens seen up to which decode queries and prompts are read alike; `Backend.build` sets it.
    exact_until: float = math.inf

    def __init__(self, geometry: Geometry, backend: Method) -> None:
        self.geometry, self.budget = geometry, backend.budget
        self.key_heads = geometry.Hkv  # of the model, which `geometry` may have more of
        self.state: dict[str, Slots] = {}
        # Attributes that have a number of each row, (B,), and what an empty row has.
        self._row_counts: dict[str, int] = {}
        self.traces: tuple[Tensor, ...] = ()  # what the last `step` left on the device
        # Positions that rows stored before the last step cut them, (Hkv, S), by row.
        self.before: dict[int, Tensor] = {}
        self.store: gpu.Store | None = None  # where captured steps look for the state

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"store": None}  # of a copy, which lies elsewhere

    def slots(
        self,
        name: str,
        tail: Sequence[int] = (),
        *,
        heads: int | None = None,
        dtype: torch.dtype | None = None,
        **sizes: Any,
    ) -> Slots:
        """A named tensor of this layer's state, see `Slots`; rows are selected in all of them."""
        g = self.geometry
        H, dtype = g.Hkv if heads is None else heads, g.dtype if dtype is None else dtype
        self.state[name] = Slots(g.B, H, tail, dtype=dtype, device=g.device, **sizes)
        return self.state[name]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        """Append, select or evict, attend, accumulate; (B, T, Hq, D).

        q is (B, Hq, T, D), k and v are (B, Hkv, T, D), q and k roped. What is kept of them is
        copied, as the next step's may lie where these do.
        """
        step.scope = self.budget
        if not step.decode:
            if step.decodes(self.exact_until):
                return self.in_turn(q, k, v, scaling, step)
            return self.prefill(q, k, v, scaling, step)
        out = self.decode(q, k, v, scaling, step)
        if step.idle:
            self.clear(step.tensor(step.idle))
        return out.reshape(step.rows, 1, q.shape[1], -1)

    def in_turn(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        """`forward` where tokens behind prompts come together: each as if it came alone.

        Rows with equally many decode queries go together; rows of different groups are
        copied, which only a batch whose prompts end in different columns needs.
        """
        out = q.new_zeros(step.rows, step.T, q.shape[1], v.shape[-1])
        for rows, parts in step.turns:
            alone = len(step.turns) > 1
            index = step.memo(("rows", *rows), partial(step.tensor, rows))
            layer = self.copied(index) if alone else self
            for columns, part in parts:
                query, key, value = ((x[rows] if alone else x)[:, :, columns] for x in (q, k, v))
                out[rows, columns] = layer.forward(query, key, value, scaling, part)
            if alone:
                self.replace(index, layer, torch.arange(len(rows), device=index.device))
        return out

    @abstractmethod
    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        """One token a row; any shape of B * Hq * D elements."""

    @abstractmethod
    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        """T tokens a row, dense over everything held; (B, T, Hq, D)."""

    def check(self, step: Step) -> None:  # noqa: B027
        """Refuse, before anything changes, what a decode step must not do; no device is asked."""

    # Decode steps without a number of the host, see `attention.engines.gpu`

    @property
    def hooked(self) -> bool:
        """Whether `step` calls hooks: all that a class has of its own."""
        kind = type(self)
        base = next(x for x in kind.__mro__ if "rehearse" in vars(x))
        names = ("forward", "decode", "step", "stored")
        own = base is Layer or any(getattr(kind, name) is not getattr(base, name) for name in names)
        return not (own or "on_device" in vars(kind))

    def obstacle(self) -> str | None:
        """Why `step` does not serve this layer, whose prompt was read; None where it does."""
        kind, reason = type(self), "takes lengths from the host"
        if self.geometry.Hq <= gpu.MOST_QUERIES * self.geometry.Hkv:
            if "on_device" in vars(kind) and self.on_device:
                return None
            if self.hooked:
                reason = rehearsal.obstacle(self) or ""
        return f"{kind.__name__} {reason}" if reason else None

    def rehearse(self, step: DeviceStep) -> None:
        """Call the hooks of a decode step, with any numbers."""
        raise NotImplementedError(type(self).__name__)

    @contextmanager
    def hooking(self, rows: int) -> Iterator[None]:
        """Hooks see the first rows of what is reserved; what they bind anew is copied there."""
        places = [(x, x.fixed, len(x.data)) for x in self.state.values() if x.fixed is not None]
        for slots, memory, _ in places:
            slots.data = memory[:rows]
        try:
            yield
            for slots, memory, _ in places:
                if slots.data.data_ptr() != memory.data_ptr():
                    memory[:rows].copy_(slots.data)
        finally:
            for slots, memory, held_rows in places:
                slots.data, slots.fixed = memory[:held_rows], memory

    @property
    def written(self) -> list[Tensor]:
        """What hooks may write, whether or not rows are live."""
        names = self.state.keys() - {"k", "v"} if self.hooked else set()
        return fixed(*(self.state[name] for name in sorted(names)))

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, scaling: float, counts: gpu.DeviceCounts
    ) -> Tensor:
        """`decode` of R rows, as always the same launches, (R, 1, Hq, D); then comes `settle`."""
        assert self.store is not None
        return self.geometry.engine.step(counts, self.store, q, k, v, scaling)

    def settle(self, step: Step) -> Sequence[Cut]:  # noqa: ARG002
        """Count on the host what `step` did, and rows that are to be cut; they count as cut."""
        return ()

    def staying(self, prompt: Counts) -> Counts:
        """How many first tokens of prompts of so many stay, (B,)."""
        if isinstance(self.keeps_prompt, bool):
            return prompt * self.keeps_prompt
        return np.minimum(prompt, self.keeps_prompt)

    def least_room(self) -> int:
        """The fewest tokens of the budget, in addition to a prompt that stays, for the method."""
        return 1

    def check_prompts(self, prompts: Counts) -> None:
        """Refuse a prompt of which so many tokens stay that too little of the budget is left."""
        if not self.keeps_prompt or self.budget is None:
            return
        longest, least = int(self.staying(prompts).max(initial=0)), self.least_room()
        if longest > (most := self.budget - least):
            allowed = f"at most {most} = budget {self.budget} - {least} that the method needs"
            allowed += f", as {self.geometry.method} with keep_prompt drops none of them"
            raise InvalidValue("prompt", f"{longest} tokens", allowed)

    def trim(self) -> None:  # noqa: B027
        """Free the memory of what a prompt had more than the budget."""

    def shorten_together(self, cut: Cut, inputs: Tensor, layers: Sequence[Layer]) -> list[Tensor]:
        """Cut P rows of layers, of which this is the first; positions before, (P, Hkv, S) each.

        `inputs` are `cut.inputs` of P places; of `cut` itself nothing is read that differs by row.
        """
        raise NotImplementedError(self.geometry.method)

    def close(self, step: Step) -> Sequence[Cut]:  # noqa: ARG002
        """Rows to be cut once all layers have run with lengths of the host; they count as cut."""
        return ()

    def dense(self, step: Step) -> bool:  # noqa: ARG002
        """Whether a layer that chooses reads all in this step; the launches are others then."""
        return True

    def stored(self, counts: gpu.DeviceCounts) -> gpu.Store:
        """What `step` reads and writes, which is reserved."""
        raise NotImplementedError(self.geometry.method)

    def store_of(
        self, k: Slots, v: Slots, lengths: Tensor, limit: int, place: str = "append", **more: Any
    ) -> gpu.Store:
        """A store of reserved keys and values; see `gpu.Store`."""
        (keys, values), sinks = fixed(k, v), self.geometry.sink_logits
        where = (self.geometry.index, keys, values, lengths, limit, place)
        return gpu.Store(*where, sink_logits=sinks, **more)

    def row_numbers(self, prompts: Counts) -> dict[str, Counts]:  # noqa: ARG002
        """What `number` answers from `DeviceCounts`, (B,) each."""
        return {}

    def number(self, counts: gpu.DeviceCounts, name: str, grows: bool = False) -> Tensor:
        """A number of each row, shared by the layers of one budget."""
        return counts.number(f"{name} {self.budget}", grows)

    def reserve(self, counts: gpu.DeviceCounts) -> None:
        """Let the state lie at fixed addresses, for `step`."""
        for slots in self.state.values():
            slots.reserve(counts.rows, counts.tokens)
        self.store = self.stored(counts)

    def release(self) -> None:
        """Let the state move again, for `decode`."""
        if self.store is not None:
            self.store = None
            for slots in self.state.values():
                slots.fixed = None
            self.restore()

    def restore(self) -> None:  # noqa: B027
        """Bring what `step` keeps in another form to that of `decode`."""

    def check_budget(self, read: int) -> None:
        """Raise BudgetExceeded when a decode query would read more than the budget."""
        if self.budget is not None and read > self.budget and not self.reads_all:
            raise BudgetExceeded(self.geometry.method, self.geometry.index, read, self.budget)

    # Rows

    def select(self, index: Tensor) -> None:
        """Keep, reorder or repeat rows."""
        for slots in self.state.values():
            slots.select(index)
        for name in self._row_counts:
            setattr(self, name, getattr(self, name)[index.cpu().numpy()])

    def replace(self, rows: Tensor, source: Layer, source_rows: Tensor) -> None:
        """Rows become copies of another layer's rows."""
        for name, slots in self.state.items():
            slots.replace(rows, source.state[name], source_rows)
        for name in self._row_counts:
            self.renumber(name, rows, getattr(source, name)[source_rows.cpu().numpy()])

    def clear(self, rows: Tensor) -> None:
        """Empty these rows."""
        for slots in self.state.values():
            slots.clear(rows)
        for name, empty in self._row_counts.items():
            self.renumber(name, rows, empty)

    def renumber(self, name: str, rows: Tensor, values: Counts | int) -> None:
        """Give rows other numbers, in a new array: others may hold the old one."""
        counts = getattr(self, name).copy()
        counts[rows.cpu().numpy()] = values
        setattr(self, name, counts)

    def copied(self, index: Tensor) -> Self:
        """A copy of rows `index` alone, in this order; it shares no memory with this layer."""
        # Keys and values are copied by `select`: once, and those of no other row.
        memo = {id(slots.data): slots.data for slots in self.state.values()}
        twin = copy.deepcopy(self, memo)
        twin.select(index)
        if self.store is not None:
            twin.restore()
        return twin

    def tokens(self, rows: Tensor, seen: Counts) -> tuple[Tensor, Tensor]:
        """Keys, as the model roped them, and values of rows (R,) that have seen so many tokens.

        Each in order of position, (R, Hkv, max(seen), D), new memory; anything behind a row's end.
        """
        raise NotImplementedError(self.geometry.method)

    def crop(self, rows: Counts, seen: Counts) -> None:
        """Forget all but the first seen[i] tokens of row rows[i]; `refuse_crop` is asked before."""
        raise NotImplementedError(self.geometry.method)

    def refuse_crop(self, seen: Counts) -> InvalidValue | None:  # noqa: ARG002
        """Why rows that have seen this much cannot be cropped exactly; None where they can."""
        if self.rewindable:
            return None
        allowed = "a method that keeps all tokens and learns nothing from attention; this one "
        allowed += "cannot bring back what a removed token made it drop or count"
        return InvalidValue("crop", self.geometry.method, allowed)

    # Accounting, from the tokens seen

    def kept(self, seen: Counts) -> Counts:
        """Keys kept per KV head after a decode step, (B,); all unless a method says otherwise."""
        return seen

    def reads(self, seen: Counts) -> Counts:
        """Keys the last decode query read per query head, (B,); where heads differ, the most."""
        return self.kept(seen)

    def cost(self, seen: Counts) -> Counts:
        """Keys the last decode step read, summed over KV heads, index structures included."""
        return self.reads(seen) * self.geometry.Hkv + self.overhead(seen)

    def overhead(self, seen: Counts) -> Counts:
        """Keys' worth of index structures that the last decode step read, over KV heads, (B,)."""
        return np.zeros_like(seen)

    def measured(self, seen: Counts) -> Tensor | None:  # noqa: ARG002
        """The `reads`, their mean over query heads and the `cost` where they follow from a choice.

        (3, B), float64, of the last decode step, on the device, so that nobody waits for them; None
        where lengths tell.
        """
        return None

    def row_bytes(self, seen: Counts) -> Counts:
        """Bytes of kept keys and values and of method state, (B,)."""
        g = self.geometry
        return self.kept(seen) * (g.Hkv * 2 * g.D * g.dtype.itemsize)

    # Looking

    def kept_positions(self, row: int, seen: int) -> Tensor:  # noqa: ARG002
        """Positions of the tokens this row keeps, ascending, (Hkv, kept)."""
        return torch.arange(seen, device=self.geometry.device).expand(self.geometry.Hkv, -1)

    def read_positions(self, row: int, seen: int) -> Tensor:
        """Positions the last decode query read, ascending, (Hkv, read) or (Hq, read)."""
        return self.kept_positions(row, seen)


class KeepAll(Layer):
    """Every token stays, in the order it came; slot = position."""

    keeps_all = rewindable = on_device = True

    def __init__(self, geometry: Geometry, backend: Method, page: int = 1) -> None:
        super().__init__(geometry, backend)
        self.k = self.slots("k", (geometry.D,), multiple=page)
        self.v = self.slots("v", (geometry.D,), multiple=page)

    def append(self, k: Tensor, v: Tensor, step: Step) -> None:
        """Write the new tokens of each row behind those held."""
        self.k.fit(step.longest)
        self.v.fit(step.longest)
        if step.decode:
            at = step.flat(step.past, self.geometry.Hkv, self.k.capacity, "append")
            self.geometry.engine.put(((self.k, k), (self.v, v)), at)
        else:
            step.write(self.k.data, step.past, k)
            step.write(self.v.data, step.past, v)

    def decode(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        self.append(k, v, step)
        return self.attend_all(q, scaling, step)

    def stored(self, counts: gpu.DeviceCounts) -> gpu.Store:
        limit = fixed(self.k)[0].shape[2]
        return self.store_of(self.k, self.v, counts.seen, limit)

    def attend_all(self, q: Tensor, scaling: float, step: Step) -> Tensor:
        """The decode query over every token."""
        g = self.geometry
        query, occupancy = group(q, g.Hkv, scaling), step.occupancy()
        return g.engine.attend(QKV(query, self.k.data, self.v.data, g.sink_logits), occupancy).out

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, scaling: float, step: Step) -> Tensor:
        self.append(k, v, step)
        last = step.last_visible(step.past, "all")
        sinks, window = self.geometry.sink_logits, self.geometry.model_window
        first = not step.past.any()
        square = first and not step.padded
        if first and not square and sinks is None and window is None:
            out = self.geometry.engine.ragged_prompt(q, k, v, scaling, step.new)
            if out is not None:
                return out
        if not square:
            k, v = (x.data[:, :, : step.longest] for x in (self.k, self.v))
        return dense(q, k, v, scaling, last, square, sink_logits=sinks, window=window)

    def fill(self, k: Tensor, v: Tensor) -> None:
        """Hold these tokens, (B, Hkv, n, D), keys roped."""
        for slots, new in ((self.k, k), (self.v, v)):
            slots.fit(new.shape[2])
            slots.data[:, :, : new.shape[2]] = new

    def tokens(self, rows: Tensor, seen: Counts) -> tuple[Tensor, Tensor]:
        most = int(seen.max(initial=0))
        k, v = (x.data[:, :, :most].index_select(0, rows) for x in (self.k, self.v))
        return k, v

    def crop(self, rows: Counts, seen: Counts) -> None:
        """Nothing to do: what lies behind a row's length is never read."""


def fixed(*state: Slots) -> list[Tensor]:
    """The memory of what is reserved, of all rows."""
    return [slots.fixed for slots in state if slots.fixed is not None]


def gather(x: Tensor, index: Tensor) -> Tensor:
    """Slots `index` (B, 1 or H, N) of (B, H, C, ...)."""
    return x.take_along_dim(index.view(*index.shape, *(1 for _ in x.shape[3:])), dim=2)


def row_lists(positions: Tensor, live: Tensor) -> Tensor:
    """The live positions of one row's heads, ascending: (H, S) and (H, S) to (H, most).

    A head with fewer of them than another begins with -1.
    """
    most = int(live.sum(-1).max())
    ordered = positions.masked_fill(~live, -1).sort(dim=-1).values
    return ordered[:, ordered.shape[1] - most :]
