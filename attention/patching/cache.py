"""The cache a model carries through its layers: rows, lengths, and one state per layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention.core.step import Step
from attention.errors import InvalidValue
from attention.layers.layer import Geometry, Layer
from attention.patching.inputs import check_positions, new_tokens
from attention.patching.rows import Rows
from attention.patching.stats import CacheStats, RowStats, cache_stats, row_stats

# Marks the keys a cache returns, so that the attention function finds the cache without globals.
TAG = "_lil_attention_cache"


class AttentionCache(Rows):
    """State of B sequences under one backend; `past_key_values` of a patched model.

    Rows are ragged: each stores its real tokens from slot 0 on and has its own length, so padding
    enters nothing. After a left-padded prefill the mask is not needed again.

    Rows are copied, replaced and taken back by the methods of `Rows`.
    """

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
        if not self.session.open:
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
        sink_logits: Tensor | None = None,
    ) -> Tensor:
        """One layer of one forward; see `Layer.forward` for shapes, `Geometry` for `sink_logits`.

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
            self.layers.append(self._build(index, q, k, sink_logits))
        out = self.layers[index].forward(q, k, v, scaling, step)
        self._done += 1
        if self._done == self.session.layers:
            self._seen = step.seen
            self._seen[step.idle] = 0
            self._prompts = step.prompt
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

    def _build(self, index: int, q: Tensor, k: Tensor, sink_logits: Tensor | None) -> Layer:
        B, Hkv, _, D = k.shape
        return self.backend.build(
            Geometry(
                method=self.backend.name,
                index=index,
                B=B,
                Hq=q.shape[1],
                Hkv=Hkv,
                D=D,
                dtype=k.dtype,
                device=k.device,
                rope=self.session.rope,
                model_window=self.session.windows[index],
                sink_logits=None if sink_logits is None else sink_logits.detach(),
            )
        )

    def _begin(self, q: Tensor, mask: Tensor | None, position_ids: Tensor | None) -> None:
        """Read mask and positions, refuse what does not fit, and open a step."""
        if self._step is not None:
            raise RuntimeError("an earlier forward failed half way; start again from cache.new()")
        B, _, T, _ = q.shape
        past = self._seen if self.layers else np.zeros(B, dtype=np.int64)
        if len(past) != B:
            raise InvalidValue("input_ids", f"{B} rows", f"{len(past)} rows, as this cache holds")
        told = self._prompts if self.layers or len(self._prompts) else np.zeros_like(past)
        if len(told) != B:
            raise InvalidValue("prompts", told.tolist(), f"a number for each of the {B} rows")
        new = new_tokens(mask, past, self.columns, T)
        prompts = np.where(told == 0, new, told)
        step = Step(past, new, T, q.device, prompts)
        check_positions(position_ids, step)
        self._step, self._done = step, 0

    # What transformers asks of a cache

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Beam search: rows follow their beams."""
        self.select_rows(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """transformers' name for `select_rows`."""
        self.select_rows(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times, copies side by side."""
        self.select_rows(torch.arange(len(self._seen)).repeat_interleave(repeats))

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
        self._idle()
        indices = range(len(self.layers))
        return cache_stats(
            self.backend,
            self.layers,
            self._seen,
            [self.kept_positions(i) for i in indices],
            [self.read_positions(i) if self.decoded else [] for i in indices],
            per_layer,
        )

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
