"""The cache a model carries through its layers: rows, lengths, and one state per layer."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache

from attention.errors import InvalidValue
from attention.inputs import check_positions, new_tokens
from attention.layer import Geometry, Layer
from attention.stats import CacheStats, RowStats, cache_stats, row_stats
from attention.step import Counts, Step

if TYPE_CHECKING:
    from attention.runtime import Runtime

# Marks the keys a cache returns, so that the attention function finds the cache without globals.
TAG = "_lil_attention_cache"


class AttentionCache(Cache):
    """State of B sequences under one backend; `past_key_values` of a patched model.

    Rows are ragged: each stores its real tokens from slot 0 on and has its own length, so padding
    enters nothing. After a left-padded prefill the mask is not needed again.

    Attributes:
        columns: input columns fed so far, padding included; what `get_seq_length()` answers.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(layers=[])
        self.runtime = runtime
        self.layers: list[Layer] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.layers.clear()
        self.columns = 0
        self._seen: Counts = np.zeros(0, dtype=np.int64)
        self._step: Step | None = None
        self._done = 0  # layers of the current forward that have run
        self._decoded = np.zeros(0, dtype=bool)  # rows whose last token was a decode step

    def new(self) -> AttentionCache:
        """Another empty cache, valid in the same `with` block."""
        return AttentionCache(self.runtime)

    @property
    def backend(self) -> Any:
        """The backend of this block."""
        return self.runtime.backend

    @property
    def seen(self) -> Tensor:
        """Real tokens seen per row, (B,); also each row's next position."""
        device = self.layers[0].geometry.device if self.layers else None
        return torch.tensor(self._seen, device=device)

    @property
    def decoded(self) -> bool:
        """Whether the last forward was a decode step of some row still here."""
        return bool(self._decoded.any())

    @property
    def kv_heads(self) -> int:
        """KV heads summed over layers: keys read per token by dense attention."""
        return sum(layer.geometry.Hkv for layer in self.layers)

    # One forward

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,  # noqa: ARG002
        *_: Any,
        **__: Any,
    ) -> tuple[Tensor, Tensor]:
        """Called by the model with roped keys; marks them for the attention function.

        Raises:
            InvalidValue: outside the `with` block.
        """
        if not self.runtime.open:
            raise InvalidValue(
                "past_key_values",
                f"a cache of a closed {self.backend.name} block",
                "a cache of the `with backend.on(model)` block the model is called in",
            )
        setattr(key_states, TAG, self)
        return key_states, value_states

    def attend(
        self,
        index: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        scaling: float,
        position_ids: Tensor | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """One layer of one forward; see `Layer.forward` for shapes, `Geometry` for sinks.

        Raises:
            InvalidValue: mask, positions, rows, dtype or device do not fit what the cache holds.
        """
        delattr(k, TAG)
        self._check_kind(index, q, k, v)
        if index == 0:
            self._begin(q, mask, position_ids)
        step = self._step
        if step is None or index != self._done:
            raise RuntimeError(
                f"layer {index} ran where layer {self._done} was due: an earlier forward failed "
                "half way or layers were skipped; start again from cache.new()"
            )
        if index == len(self.layers):
            self.layers.append(self._build(index, q, k, sinks))
        out = self.layers[index].forward(q, k, v, scaling, step)
        self._done += 1
        if self._done == self.runtime.layers:
            self._seen = step.seen
            self._seen[step.idle] = 0
            self.columns += step.T
            self._decoded = np.full(step.rows, step.decode)
            self._decoded[step.idle] = False
            self._step = None
        return out

    def _check_kind(self, index: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Refuse tensors of another dtype or device than those held."""
        held: Tensor | Geometry = self.layers[index].geometry if index < len(self.layers) else k
        if q.dtype is k.dtype is v.dtype is held.dtype and k.device == held.device:
            return
        raise InvalidValue(
            "model",
            f"queries {q.dtype}, keys {k.dtype}, values {v.dtype} on {k.device}",
            f"{held.dtype} on {held.device} as before in layer {index}: a model that was moved or "
            "converted needs a cache.new(); autocast mixes dtypes and is not supported",
        )

    def _build(self, index: int, q: Tensor, k: Tensor, sinks: Tensor | None) -> Layer:
        B, Hkv, _, D = k.shape
        layer: Layer = self.backend.build(
            Geometry(
                method=self.backend.name,
                index=index,
                B=B,
                Hq=q.shape[1],
                Hkv=Hkv,
                D=D,
                dtype=k.dtype,
                device=k.device,
                rope=self.runtime.rope,
                window=self.runtime.windows[index],
                sinks=None if sinks is None else sinks.detach(),
            )
        )
        return layer

    def _begin(self, q: Tensor, mask: Tensor | None, position_ids: Tensor | None) -> None:
        """Read mask and positions, refuse what does not fit, and open a step."""
        if self._step is not None:
            raise RuntimeError("an earlier forward failed half way; start again from cache.new()")
        B, _, T, _ = q.shape
        past = self._seen if self.layers else np.zeros(B, dtype=np.int64)
        if len(past) != B:
            raise InvalidValue("input_ids", f"{B} rows", f"{len(past)} rows, as this cache holds")
        step = Step(past, new_tokens(mask, past, self.columns, T), T, q.device)
        check_positions(position_ids, step)
        self._step, self._done = step, 0

    # Copies

    @torch.inference_mode(False)
    @torch.no_grad()
    def clone(self) -> AttentionCache:
        """An independent copy of all rows and their state, valid in the same `with` block.

        Continuing from the copy is continuing from here; this cache stays as it is. The same as
        `copy.deepcopy`.
        """
        self._idle()
        twin = self.new()
        twin.layers = copy.deepcopy(self.layers)
        twin.columns = self.columns
        twin._seen, twin._decoded = self._seen.copy(), self._decoded.copy()
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> AttentionCache:
        return self.clone()

    __copy__ = clone  # half a copy would share state that changes in place

    def to(self, *_: Any, **__: Any) -> AttentionCache:
        """Refused: a state is of its model's device and dtype.

        Raises:
            InvalidValue: always.
        """
        raise InvalidValue(
            "cache.to",
            f"a cache of {self.backend.name}",
            "move or convert the model, then feed a cache.new(): scores and choices made in one "
            "precision are not those of another",
        )

    # Rows

    def _rows(self, rows: Sequence[int] | Tensor, field: str) -> Tensor:
        index = torch.as_tensor(rows, dtype=torch.long).reshape(-1)
        B = len(self._seen)
        if len(index) and (int(index.min()) < 0 or int(index.max()) >= B):
            raise InvalidValue(field, index.tolist(), f"rows from 0 to {B - 1}")
        return index

    def _idle(self) -> None:
        if self._step is not None:
            raise RuntimeError("an earlier forward failed half way; start again from cache.new()")

    @torch.inference_mode(False)
    @torch.no_grad()
    def select_rows(self, rows: Sequence[int] | Tensor) -> None:
        """Keep these rows in this order; repeats are allowed (beams).

        Raises:
            InvalidValue: no such row.
        """
        self._idle()
        index = self._rows(rows, "rows")
        for layer in self.layers:
            layer.select(index.to(layer.geometry.device))
        self._seen = self._seen[index.cpu().numpy()]
        self._decoded = self._decoded[index.cpu().numpy()]

    @torch.inference_mode(False)
    @torch.no_grad()
    def replace_rows(
        self,
        rows: Sequence[int],
        source: AttentionCache,
        source_rows: Sequence[int] | None = None,
    ) -> None:
        """Rows of this cache become copies of rows of `source`; the others stay untouched.

        Args:
            rows: rows to overwrite.
            source: a cache of the same block, for instance a prefilled `cache.new()`.
            source_rows: rows to copy, as many; all of source's by default.

        Raises:
            InvalidValue: rows do not exist, are named twice or do not match in number, or
                `source` comes from another block.
        """
        self._idle()
        source._idle()
        if source.runtime is not self.runtime:
            raise InvalidValue("source", source.backend.name, "a cache of the same `with` block")
        ours = self._rows(rows, "rows")
        theirs = source._rows(
            range(len(source._seen)) if source_rows is None else source_rows, "source_rows"
        )
        if len(ours) != len(theirs):
            raise InvalidValue("source_rows", theirs.tolist(), f"{len(ours)} rows, as in `rows`")
        if len(set(ours.tolist())) != len(ours):
            raise InvalidValue("rows", ours.tolist(), "each row once")
        for layer, other in zip(self.layers, source.layers, strict=True):
            device = layer.geometry.device
            layer.replace(ours.to(device), other, theirs.to(device))
        self._seen = self._seen.copy()
        self._seen[ours.numpy()] = source._seen[theirs.numpy()]
        self._decoded[ours.numpy()] = False
        self.columns = max(self.columns, int(self._seen.max()))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Beam search: rows follow their beams."""
        self.select_rows(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """transformers' name for `select_rows`."""
        self.select_rows(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times, copies side by side."""
        self.select_rows(torch.arange(len(self._seen)).repeat_interleave(repeats))

    @torch.inference_mode(False)
    @torch.no_grad()
    def crop(self, tokens_to_remove: int) -> None:
        """Forget the newest tokens of every row.

        Args:
            tokens_to_remove: as in transformers, minus the number of tokens; 0 does nothing.

        Raises:
            InvalidValue: positive, more than a row has, or a method that cannot do so exactly.
        """
        self._idle()
        if tokens_to_remove == 0 or not self.layers:
            return
        left = self._seen + tokens_to_remove
        if tokens_to_remove > 0 or left.min() < 0:
            raise InvalidValue(
                "tokens_to_remove", tokens_to_remove, f"from -{int(self._seen.min())} to 0"
            )
        for layer in self.layers:
            if reason := layer.refuse_crop(self._seen):
                raise reason
        for layer in self.layers:
            layer.crop(left)
        self._seen = left
        self.columns += tokens_to_remove
        self._decoded[:] = False

    # What transformers asks of a cache

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Columns fed so far, left padding included: n for a row without padding."""
        return self.columns

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:  # noqa: ARG002
        """Width and offset of a padding mask for `query_length` more columns."""
        return self.columns + query_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:  # noqa: ARG002
        """-1: sequences may grow without end."""
        return -1

    @property
    def batch_size(self) -> int:
        """B, or -1 while empty."""
        return len(self._seen) if self.layers else -1

    @property
    def is_initialized(self) -> bool:
        """Whether anything was stored."""
        return bool(self.layers)

    @property
    def is_compileable(self) -> bool:
        """False: shapes grow."""
        return False

    @property
    def is_croppable(self) -> bool:
        """Whether `crop` is exact for this method."""
        return bool(self.layers) and all(
            layer.refuse_crop(self._seen) is None for layer in self.layers
        )

    @property
    def is_sliding(self) -> list[bool]:
        """False for every layer: a mask is to have all columns, wherever a model slides."""
        return [False] * len(self.layers)

    is_linear = is_sliding
    is_dummy = is_sliding

    # Looking

    def row_stats(self) -> RowStats:
        """What the last forward kept, read and holds, per row; costs no device time.

        Raises:
            RuntimeError: nothing was fed yet.
        """
        self._idle()
        if not self.layers:
            raise RuntimeError("row_stats() before the first forward")
        return row_stats(self.layers, self.backend.dense_layers, self._seen, self._decoded)

    def stats(self, per_layer: bool = False) -> CacheStats:
        """A summary of the whole cache, counted in the state itself.

        Args:
            per_layer: fill `layers` too.
        """
        return cache_stats(self, per_layer)

    def kept_positions(self, layer: int) -> list[Tensor]:
        """Absolute positions of the tokens a layer keeps: per row (Hkv, kept), ascending."""
        self._idle()
        state = self.layers[layer]
        return [state.kept_positions(r, n) for r, n in enumerate(self._seen.tolist())]

    def read_positions(self, layer: int) -> list[Tensor]:
        """Positions the last decode query read: per row (Hkv, read), ascending.

        (Hq, read) where each query head has its own set, -1 first where it is smaller than
        another's; read = 0 in rows replaced since.

        Raises:
            RuntimeError: the last forward was no decode step.
        """
        self._idle()
        if not self.decoded:
            raise RuntimeError("read_positions() needs a decode step (T = 1) as the last forward")
        state = self.layers[layer]
        none = torch.zeros(state.geometry.Hkv, 0, dtype=torch.long)
        return [
            state.read_positions(r, n) if decoded else none
            for r, (n, decoded) in enumerate(zip(self._seen.tolist(), self._decoded, strict=True))
        ]
