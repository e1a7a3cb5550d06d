"""The cache a model carries through its layers: rows, lengths, and one state per layer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from transformers import Cache

from attention.core import devices
from attention.core.compiling import changing_state, uncompiled
from attention.core.step import Counts, Cut, Step
from attention.engines import gpu, select
from attention.errors import InvalidValue, check_int
from attention.layers.layer import Geometry, KeepAll, Layer
from attention.layers.sliding import DraftedLayer
from attention.patching.recurrent import StateCache
from attention.patching.rows import Flags, RowCounts, check_kind, check_positions, new_tokens
from attention.patching.stats import CacheStats, RowStats, row_stats
from attention.patching.survey import Session, capacity

# Marks the keys a cache returns, so that the attention function finds the cache without globals.
TAG = "_lil_attention_cache"
# What a patched model's config calls its attention.
ATTENTION = "lil_attention"
_BROKEN = "an earlier forward failed half way; start again from cache.new()"
# Behind so many forwards of several tokens between steps keys are left where they are.
_MOST_RELEASES = 4
Rows = Sequence[int] | Tensor
# `Layer.shorten` of several layers at once; gives None where it cannot.
Shorten = Callable[[Cut, Sequence[Layer]], Sequence[Tensor] | None]


class AttentionCache(StateCache):
    """State of B sequences under one backend; `past_key_values` of a patched model.

    Each row stores its real tokens and has its own length, so padding enters nothing. `layers` are
    those that hold keys, in the order in which they run; none before the first forward. No budget
    binds `states`.
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session, self.backend = session, session.backend
        self.layers: list[Layer] = []
        self.reset()

    def reset(self, prompts: Counts | Sequence[int] = (), beyond: bool = False) -> None:
        """Forget everything; the next rows have such prompts, see `new`."""
        self.layers.clear()
        self.states.clear()
        self.columns = 0
        self._rows = RowCounts.of_prompts(np.array(prompts, np.int64), beyond)
        self.counts: gpu.DeviceCounts | None = None  # while `step` may run
        self._written: RowCounts | None = None  # the rows that these are of
        self._releases = 0  # forwards of another kind between such steps
        self._step: Step | None = None
        self._done = 0  # layers of the current forward that have run
        self._running = False  # whether a forward of a model with other states has begun
        self.handed = False  # whether keys were given to the model and did not come back
        self._drafting = False  # whether `generate` is going to draft tokens
        self._drafts = 0  # newest columns of the coming forward that are drafts
        self._dense = False  # whether forwards read all their tokens as a prompt is read
        self._beyond: Flags | None = None  # of the coming forward, where the model has a switch

    def new(self, prompts: Sequence[int] | None = None, *, beyond: bool = False) -> Self:
        """Another empty cache, valid in the same `with` block.

        Args:
            prompts: how many of each row's first tokens, at least one, are its prompt: they are
                read whole, and what comes behind them by decode queries, however it comes. By
                default a prompt is what comes before the first forward of a single column on top of
                another one; methods with rules for prompts take the row's first forward for it.
            beyond: with `prompts`, whether keys are turned for a text beyond `Anatomy.switch`,
                however short the rows are: they are about to grow beyond it.
        """
        twin = type(self)(self.session)
        twin.reset([check_int("prompts", n, 1) for n in prompts or ()], beyond)
        return twin

    @property
    def outgrown(self) -> list[int]:
        """Rows whose next token lies beyond `Anatomy.switch`: they have to be read anew."""
        rows = self._rows
        return np.flatnonzero(~rows.beyond & (rows.seen == self.session.anatomy.switch)).tolist()

    def restart(self) -> None:
        """Forget everything but how long prompts are: the model reads the whole text anew."""
        self.reset(self._rows.prompts)

    def before(self, rows: int) -> RowCounts:
        """The numbers of so many rows before a forward."""
        before = self._rows if self.layers else self._rows.before(rows)
        if len(before.seen) != rows:
            allowed = f"{len(before.seen)} rows, as this cache holds"
            raise InvalidValue("input_ids", f"{rows} rows", allowed)
        return before

    @property
    def seen(self) -> Tensor:
        """Real tokens seen per row, (B,); also each row's next position."""
        device = self.layers[0].geometry.device if self.layers else torch.device("cpu")
        # A copy: on a CPU tensors share the memory of the array they are made of.
        return devices.put(self._rows.seen.copy(), device)

    @property
    def decoded(self) -> bool:
        """Whether the last forward was a decode step of some row still here."""
        return bool(self._rows.decoded.any())

    @property
    def kv_heads(self) -> int:
        """KV heads summed over layers: keys read per token by dense attention."""
        return sum(layer.key_heads for layer in self.layers)

    def _idle(self) -> None:
        if self._step is not None or self._running:
            raise RuntimeError(_BROKEN)

    @contextmanager
    def dense(self) -> Iterator[None]:
        """In this block every token is read as a prompt is: so are drafts of the method checked."""
        if not self.backend.keeps_all:
            allowed = "a method that keeps all keys and reads prompts under full attention"
            raise InvalidValue("backend", self.backend.name, allowed)
        before, self._dense = self._dense, True
        try:
            yield
        finally:
            self._dense = before

    # One forward

    @uncompiled
    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by the model with roped keys; marks them for the attention function."""
        if not self.session.open:
            raise self.misplaced()
        # Asked once a forward: a config takes its time to answer.
        if self._step is None and (now := self.session.config._attn_implementation) != ATTENTION:
            raise InvalidValue("attn_implementation", now, "no other set inside the `with` block")
        self.handed = not self.handed
        if not self.handed:  # a model that is not patched would attend to the newest tokens alone
            raise self.misplaced()
        setattr(key_states, TAG, (self, layer_idx))
        return key_states, value_states

    def expect(self, logits_to_keep: Any) -> None:
        """Take in how many columns a forward is to score: all drafts, and the one before them."""
        self._drafts = 0
        if not isinstance(logits_to_keep, int) or logits_to_keep < 2:
            return
        if self._drafting or not hasattr(Cache, "activate_past_recording"):
            self.activate_past_recording()
            self._drafts = logits_to_keep - 1

    def activate_past_recording(self) -> None:
        """Called by `generate` before it drafts tokens, which it crops where they were wrong."""
        anatomy, drafts = self.session.anatomy, f"drafts of a {self.session.family}"
        reason = None
        if anatomy.states:
            reason = self._cannot_go_back()
        elif any(x.geometry.model_window and not x.keeps_all for x in self.layers):
            reason = "this cache holds a text whose first tokens slid out of the model's windows"
        elif anatomy.switch is not None:
            reason = "the model reads longer texts anew, with other keys"
        elif not self.backend.rewindable:
            drafts = f"drafts under {self.backend.name}"
            reason = "this method cannot bring back what they made it drop or count"
        if reason is not None:
            allowed = f"none: wrong drafts are taken back, and {reason}"
            raise InvalidValue("assistant_model or prompt_lookup_num_tokens", drafts, allowed)
        self._drafting = True

    def begin(self, rows: int, T: int, mask: Tensor | None) -> Counts:
        """A forward begins: the lengths that a rope follows at its T columns, (B, T).

        A text ends at each of them, but tokens of a prompt have its length, and beyond
        `Anatomy.switch` all of a row have one.
        """
        self._idle()
        before, anatomy, family = self.before(rows), self.session.anatomy, self.session.family
        if T > 1 and before.seen.any() and not anatomy.parts:
            allowed = f"one at a time, or all in the first forward: {family} itself drops the "
            allowed += "state of its layers there"
            raise InvalidValue("input_ids", f"{T} columns on top of others", allowed)
        new = new_tokens(mask, before.seen, self.columns, T)
        whole = before.read_whole(new, self._drafts, single=T == 1)
        ends = (before.seen + new - T)[:, None] + np.arange(1, T + 1)
        lengths: Counts = np.maximum(ends, np.maximum(whole, 1)[:, None])
        if anatomy.switch is not None:
            beyond = before.beyond | (lengths[:, -1] > anatomy.switch)
            if (beyond & ~before.beyond & (before.seen > 0)).any():
                allowed = f"texts that are read anew there, as generate() of {family} and "
                allowed += "lil.decode do: it turns keys otherwise in longer texts"
                value = f"tokens beyond the first {anatomy.switch}"
                raise InvalidValue("input_ids", value, allowed)
            self._beyond = beyond
            row_lengths = np.where(beyond, anatomy.switch + 1, 1)
            lengths = np.broadcast_to(row_lengths[:, None], lengths.shape)
        self._running = bool(anatomy.states)
        return lengths

    def check_begun(self) -> None:
        """Refuse states of a forward that did not begin here."""
        if not self._running:
            raise self.misplaced()

    def misplaced(self) -> InvalidValue:
        """The refusal of a forward that is none of this cache's block, or comes behind it."""
        block = "a {} block on another model" if self.session.open else "a closed {} block"
        got = f"a cache of {block.format(self.backend.name)}"
        allowed = "a cache of the `with backend.on(model)` block the model is called in"
        return InvalidValue("past_key_values", got, allowed)

    @changing_state
    def end(self) -> None:
        """The forward that began has come to its end."""
        self._running = False
        if len(unread := np.flatnonzero(self._rows.seen == 0)):
            self.states.empty(torch.from_numpy(unread))

    @changing_state
    def attend(
        self,
        index: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        scaling: float,
        position_ids: Tensor | None,
        sink_logits: Tensor | None = None,
    ) -> Tensor:
        """One layer of one forward: shapes as in `Layer.forward`, `sink_logits` in `Geometry`."""
        check_kind(index, self.layers[index].geometry if index < len(self.layers) else k, q, k, v)
        if index == 0:
            if self._step is not None:
                raise RuntimeError(_BROKEN)
            rows, T = self.before(len(q)), q.shape[2]
            new = new_tokens(mask, rows.seen, self.columns, T)
            opened = rows.step(new, T, q.device, self._drafts, self._dense)
            check_positions(position_ids, opened)
            self._rows, self._drafts, self._done = rows, 0, 0
            if self._beyond is not None:
                self._rows = rows._replace(beyond=self._beyond)
            if opened.decode and not opened.idle and self._steps():
                self._prepare(opened, opened.rows)
            elif self.counts is not None:
                self.release()
                self._releases += 1
            self._step = opened
        step, counts = self._step, self.counts
        if step is None or index != self._done:
            raise RuntimeError(f"layer {index} ran where layer {self._done} was due: {_BROKEN}")
        if index == len(self.layers):
            self.layers.append(self._build(index, q, k, sink_logits))
        layer = self.layers[index]
        if layer.keeps_prompt and (step.past < step.prompt).any():
            layer.check_prompts(step.prompt * (step.past < step.prompt))
        if counts is not None:
            layer.traces = ()
            out = layer.step(q, k, v, scaling, counts)
        else:
            out = layer.forward(q, k, v, scaling, step)
        self._done += 1
        if self._done == self.session.layers:
            if counts is not None:
                counts.end_step(step.rows)
                self.close_step(step, [layer.traces for layer in self.layers])
            else:
                # Of longer forwards: whether decode queries read the last token of every row.
                decoded = step.decodes(self.backend.exact_until) and len(step.turns) == 1
                due = [layer.close(step) for layer in self.layers]
                self._close(step, due, step.decode or decoded, None)
        return out

    # Steps whose lengths are on the device

    @property
    def refusal(self) -> str | None:
        """Why decode steps need numbers of the host; None where they do not."""
        if not self.layers:
            return "no prompt was read"
        engine = self.layers[0].geometry.engine
        if not engine.on_device:
            return f"the engine {engine.name} takes lengths from the host"
        if self._releases > _MOST_RELEASES:
            return "forwards of several tokens come between steps, and each moves all keys"
        rows = self._rows
        if not (rows.seen >= np.maximum(rows.prompts, 1)).all():
            return "a prompt has not been read to its end"
        for layer in self.layers:
            key, known = (type(layer), layer.geometry.index), self.session.obstacles
            if key not in known:
                known[key] = layer.obstacle()
            if known[key] is not None:
                return known[key]
        return None

    def _steps(self) -> bool:
        """Whether lengths are on the device; hooks for which they cannot be are named once."""
        known, reason = len(self.session.obstacles), self.refusal
        first = len(self.session.obstacles) > known
        if reason is not None and first and any(layer.hooked for layer in self.layers):
            name = self.backend.name
            warnings.warn(f"steps of {name} run operation by operation: {reason}", stacklevel=2)
        return reason is None

    @changing_state
    def reserve(self, rows: int, tokens: int) -> gpu.DeviceCounts:
        """Let the state lie at fixed addresses, with room for so many rows of so many tokens."""
        if self.counts is not None:
            self.release()
        self.counts = counts = gpu.DeviceCounts(rows, tokens, self.layers[0].geometry.device)
        self._written = None
        try:
            for layer in self.layers:
                layer.reserve(counts)
        except torch.OutOfMemoryError:
            self.release()
            self.session.room = (0, 0)
            raise
        return counts

    def release(self) -> None:
        """Let the state move again."""
        self.counts = None
        for layer in self.layers:
            layer.release()

    def open_step(self, rows: int) -> tuple[Step, gpu.DeviceCounts]:
        """A decode step of all rows, checked, and what kernels need; room for `rows` of them."""
        self._idle()
        seen, device = self._rows.seen, self.layers[0].geometry.device
        step = Step(seen, np.ones_like(seen), 1, device, self._rows.prompts)
        return step, self._prepare(step, rows)

    def _prepare(self, step: Step, rows: int) -> gpu.DeviceCounts:
        """Check a decode step, and let the device know its rows."""
        for layer in self.layers:
            layer.check(step)
        counts, moved = self.counts, self._rows is not self._written
        had = (0, 0) if counts is None else (counts.rows, counts.tokens)
        fits = had[0] >= rows and had[1] >= step.longest
        if moved and fits:  # rows came, went or were cut
            state = [slots for layer in self.layers for slots in layer.state.values()]
            fits = all(slots.fixed is not None for slots in state)
        if counts is None or not fits:
            room, longest = capacity(self.session.room[1]), max(step.longest, had[1])
            if longest > room:  # nobody knows how long rows become: capacity doubles
                room = 1 << max(longest - 1, 1023).bit_length()
            counts, moved = self.reserve(max(rows, had[0], self.session.room[0]), room), True
        if moved:
            numbers = [(x.budget, x.row_numbers(self._rows.prompts)) for x in self.layers]
            named = {f"{k} {budget}": x for budget, own in numbers for k, x in own.items()}
            counts.write(self._rows.seen, named)
            self._written = self._rows
        counts.dense = all(layer.dense(step) for layer in self.layers)
        return counts

    def close_step(
        self, step: Step, traces: Sequence[tuple[Tensor, ...]], shorten: Shorten | None = None
    ) -> None:
        """The step has been launched, and left `traces`: every row has one token more."""
        self._step, due = step, []  # until all is counted
        for layer, trace in zip(self.layers, traces, strict=True):
            layer.traces, step.scope = trace, layer.budget
            due.append(layer.settle(step))
        self._close(step, due, True, shorten)
        self._written = self._rows

    def _close(
        self, step: Step, due: Sequence[Sequence[Cut]], decoded: bool, shorten: Shorten | None
    ) -> None:
        """Cut what is due in each layer, several layers at once where they are cut alike."""
        cuts: dict[Cut, list[Layer]] = {}
        for layer, own in zip(self.layers, due, strict=True):
            for cut in own:
                cuts.setdefault(cut, []).append(layer)
        for cut, layers in cuts.items():
            before = None if shorten is None else shorten(cut, layers)
            if before is None:
                before = layers[0].shorten_together(cut, step.inputs(cut), layers)
            for layer, positions in zip(layers, before, strict=True):
                layer.before |= zip(cut.rows.tolist(), positions, strict=False)
        if self.counts is None and cuts:
            for layer in self.layers:
                layer.trim()
        self._rows, self._step = self._rows.after(step, decoded), None
        self.columns += step.T

    def _build(self, index: int, q: Tensor, k: Tensor, sink_logits: Tensor | None) -> Layer:
        session, (B, Hkv, _, D) = self.session, k.shape
        geometry = Geometry(
            *(self.backend.name, index, B, q.shape[1], Hkv, D, k.dtype, k.device),
            rope=session.ropes[index],
            model_window=session.windows[index],
            sink_logits=None if sink_logits is None else sink_logits.detach(),
            engine=select(session.engine, k.device, k.dtype),
            windows=session.windows,
        )
        if self._drafting and geometry.model_window is not None:
            return DraftedLayer(geometry, self.backend)
        layer = self.backend.build(geometry)
        for slots in layer.state.values():
            slots.expected = capacity(session.room[1])
        return layer

    # Rows

    @changing_state
    def clone(self, rows: Rows | None = None) -> Self:
        """A copy of these rows alone, in this order, or of all; repeats are allowed."""
        index = self._index(rows)
        twin = self.new()
        twin.layers = [layer.copied(index.to(layer.geometry.device)) for layer in self.layers]
        twin.states = self.states.copied(index)
        twin.columns, twin._drafting = self.columns, self._drafting
        twin._rows = self._rows.select(index.numpy())
        return twin

    @changing_state
    def go_dense(self, rows: Rows) -> Self:
        """A new cache in which these rows, in this order, go on under full attention.

        Every key and value is taken over at its position, bit for bit, but for InfLLM's keys
        outside its window: they are turned back from position 0, within two epsilons of the dtype.
        The model's own sliding layers go on sliding, and this cache, whose method must drop no
        token, stays as it is. Rows of such caches of a `with` block may replace one another.
        """
        if not self.backend.keeps_all:
            allowed = "a method that keeps every token, as full, quest, infllm and oracle do"
            raise InvalidValue("backend", self.backend.name, allowed)
        index = self._index(rows)
        twin = type(self)(self.session.full_session)
        twin.columns, twin._rows = self.columns, self._rows.select(index.numpy()).undecoded()
        twin.states = self.states.copied(index)
        for layer in self.layers:
            here, geometry = index.to(layer.geometry.device), layer.geometry
            if geometry.model_window is not None:
                twin.layers.append(layer.copied(here))
            else:
                dense = KeepAll(replace(geometry, method="full", B=len(index)), twin.backend)
                dense.fill(*layer.tokens(here, twin._rows.seen))
                twin.layers.append(dense)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.clone()

    __copy__ = clone  # half a copy would share state that changes in place

    @changing_state
    def select_rows(self, rows: Rows) -> None:
        """Keep these rows in this order; repeats are allowed (beams)."""
        index = self._index(rows)
        for layer in self.layers:
            layer.select(index.to(layer.geometry.device))
        self.states.select(index)
        self._rows = self._rows.select(index.numpy())

    @changing_state
    def replace_rows(
        self, rows: Rows, source: AttentionCache, source_rows: Rows | None = None
    ) -> None:
        """Rows of this cache, each named once, become copies of as many of `source`, or of all its.

        `source` is a cache of the same block, as a prefilled `cache.new()` or an earlier `clone`.
        """
        self._check_source(source)
        index, source_index = self._index(rows), source._index(source_rows, "source_rows")
        if len(index) != len(source_index):
            allowed = f"{len(index)} rows, as in `rows`"
            raise InvalidValue("source_rows", source_index.tolist(), allowed)
        if len(set(index.tolist())) != len(index):
            raise InvalidValue("rows", index.tolist(), "each row once")
        if source.counts is not None:
            source.release()  # steps on the device keep some state in another form
        for layer, other in zip(self.layers, source.layers, strict=True):
            device = layer.geometry.device
            layer.replace(index.to(device), other, source_index.to(device))
        self.states.replace(index, source.states, source_index)
        self._rows = self._rows.replaced(index.numpy(), source._rows, source_index.numpy())
        self.columns = max(self.columns, int(self._rows.seen.max()))

    @changing_state
    def append_rows(self, source: AttentionCache) -> None:
        """Copies of all rows of `source`, as in `replace_rows`, become rows behind those held."""
        self._check_source(source)
        B, more = len(self._rows.seen), len(source._rows.seen)
        if B and more:
            # Any row makes room for the new ones.
            self.select_rows([*range(B), *[0] * more])
            self.replace_rows(range(B, B + more), source, range(more))
        elif more:
            twin = source.clone()
            self.layers, self.states, self.columns = twin.layers, twin.states, twin.columns
            self._rows = twin._rows.undecoded()

    def _index(self, rows: Rows | None, field: str = "rows") -> Tensor:
        """These rows, or all, between two forwards; `field` is what they were given as."""
        self._idle()
        B = len(self._rows.seen)
        if rows is None:
            return torch.arange(B)
        index = torch.as_tensor(rows, dtype=torch.long, device="cpu").reshape(-1)
        if ((index < 0) | (index >= B)).any():
            allowed = f"rows from 0 to {B - 1}" if B else "no row: the cache holds none"
            raise InvalidValue(field, index.tolist(), allowed)
        return index

    def _check_source(self, source: AttentionCache) -> None:
        self._idle()
        source._idle()
        if source.session is not self.session or source._drafting != self._drafting:
            allowed = f"a cache of {self.backend.name} from the same `with` block"
            allowed += ", in which drafts were taken back as in this one"
            raise InvalidValue("source", f"a cache of {source.backend.name}", allowed)

    # Forgetting the newest tokens

    @property
    def is_croppable(self) -> bool:
        """Asked by `generate`: whether `crop` is exact at the lengths the rows have now."""
        exact = (layer.refuse_crop(self._rows.seen) is None for layer in self.layers)
        return bool(self.layers) and not self.states and all(exact)

    @property
    def rewindable(self) -> bool:
        """Whether `rewind` is exact for any row at any length."""
        slides = any(window is not None for window in self.session.windows)
        return self.backend.rewindable and not slides and not self.session.anatomy.states

    @changing_state
    def crop(self, tokens_to_remove: int) -> None:
        """Forget the newest tokens of every row: minus how many, or how many columns stay."""
        self._idle()
        if tokens_to_remove > 0:
            tokens_to_remove = min(tokens_to_remove - self.columns, 0)
        if tokens_to_remove == 0 or not self.layers:
            return
        seen = self._rows.seen
        if tokens_to_remove < -seen.min():
            raise InvalidValue("tokens_to_remove", tokens_to_remove, f"from -{seen.min()} to 0")
        self._forget(np.arange(len(seen)), seen + tokens_to_remove, "crop")

    @changing_state
    def rewind(self, row: int | Sequence[int], seen: int | Sequence[int]) -> None:
        """Forget all but the first `seen` tokens of one row or several; others stay untouched.

        Where a method cannot do so exactly, restore a `clone` of the row by `replace_rows`.
        """
        rows = self._index([row] if isinstance(row, int) else row, "row").numpy()
        left = np.array([seen] if isinstance(seen, int) else seen, dtype=np.int64)
        if len(left) != len(rows) or len(set(rows.tolist())) != len(rows):
            raise InvalidValue("seen", left.tolist(), f"a number for each of the rows {row}")
        had = self._rows.seen[rows]
        for index, n, most in zip(rows.tolist(), left.tolist(), had.tolist(), strict=True):
            if not 0 <= n <= most:
                raise InvalidValue("seen", n, f"from 0 to the {most} tokens of row {index}")
        if (fewer := left < had).any():
            self._forget(rows[fewer], left[fewer], "rewind")

    def _forget(self, rows: Counts, seen: Counts, field: str) -> None:
        """Leave rows[i] its first seen[i] tokens, or raise before anything changed."""
        if self.states:
            value = f"{int((self._rows.seen[rows] - seen).max())} tokens less"
            allowed = "none less: " + self._cannot_go_back() + "; restore a clone by replace_rows"
            raise InvalidValue(field, value, allowed)
        switch = self.session.anatomy.switch
        if switch is not None and (self._rows.beyond[rows] & (seen <= switch)).any():
            allowed = f"more than {switch}, or the text read anew: keys are turned for a longer one"
            raise InvalidValue(field, f"{int(seen.min())} tokens left", allowed)
        for layer in self.layers:
            if reason := layer.refuse_crop(self._rows.seen[rows]):
                raise InvalidValue(field, reason.value, reason.allowed)
        for layer in self.layers:
            layer.crop(rows, seen)
        longest = int(self._rows.seen.max())
        self._rows = self._rows.cut(rows, seen)
        self.columns -= longest - int(self._rows.seen.max())

    def _cannot_go_back(self) -> str:
        states, layers = len(self.session.anatomy.states), self.session.anatomy.layers
        return f"{states} of the {layers} layers keep a state that cannot go back"

    # What transformers asks of a cache

    reorder_cache = select_rows

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times, copies side by side."""
        self.select_rows(torch.arange(len(self._rows.seen)).repeat_interleave(repeats))

    @property
    def batch_size(self) -> int:
        """B, or -1 while empty."""
        return len(self._rows.seen) if self.layers else -1

    @property
    def is_initialized(self) -> bool:
        """Whether anything was stored."""
        return bool(self.layers)

    # Looking

    def row_stats(self) -> RowStats:
        """What the last forward kept, read and holds, per row; costs no device time."""
        self._idle()
        rows = self._rows.seen, self._rows.decoded
        return row_stats(self.layers, self.backend.dense_layers, *rows)

    def stats(self) -> CacheStats:
        """A summary of the whole cache."""
        rows, backend, seen = self.row_stats(), self.backend, self._rows.seen
        means = [mean for mean in rows.read_mean.tolist() if mean]  # of rows that decoded
        return CacheStats(
            *(backend.name, backend.params(), self.session.engine, seen.tolist()),
            kept=max(rows.kept_max.tolist(), default=0),
            read_max=max(rows.read_max.tolist(), default=0) or None,
            read_mean=sum(means) / len(means) if means else None,
            bytes=int(rows.bytes.sum()),
        )

    def kept_positions(self, layer: int) -> list[Tensor]:
        """Absolute positions of the tokens a layer keeps: per row (Hkv, kept), ascending."""
        self._idle()
        state = self.layers[layer]
        return [state.kept_positions(r, n) for r, n in enumerate(self._rows.seen.tolist())]

    def read_positions(self, layer: int) -> list[Tensor]:
        """Positions the last decode query read: per row (Hkv, read), ascending.

        (Hq, read) where each query head has its own set, -1 first where it is smaller than
        another's; read = 0 in rows replaced since.
        """
        self._idle()
        if not self.decoded:
            raise RuntimeError("read_positions() needs a decode step (T = 1) as the last forward")
        state = self.layers[layer]
        none = torch.zeros(state.key_heads, 0, dtype=torch.long)
        seen, decoded = self._rows.seen.tolist(), self._rows.decoded
        return [state.read_positions(r, n) if decoded[r] else none for r, n in enumerate(seen)]
