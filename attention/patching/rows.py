"""The rows of a cache: how they are copied, reordered, replaced and taken back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from transformers import Cache

from attention.core.step import Counts, Step
from attention.errors import InvalidValue, check_int
from attention.layers.layer import KeepAll, Layer, Method
from attention.patching.session import Session


class Rows(Cache):
    """State of B sequences, each with its own length, and what can be done to some of them.

    Attributes:
        session: the `with` block this cache belongs to.
        layers: state by layer; empty before the first forward.
        columns: input columns fed so far, padding included; what `get_seq_length()` answers.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(layers=[])
        self.session = session
        self.layers: list[Layer] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.layers.clear()
        self.columns = 0
        self._seen: Counts = np.zeros(0, dtype=np.int64)
        self._prompts: Counts = np.zeros(0, dtype=np.int64)  # first tokens that are prompt
        self._step: Step | None = None
        self._done = 0  # layers of the current forward that have run
        self._decoded = np.zeros(0, dtype=bool)  # rows whose last token was a decode step

    def new(self, prompts: Sequence[int] | None = None) -> Self:
        """Another empty cache, valid in the same `with` block.

        Args:
            prompts: how many of each row's first tokens are its prompt, for methods that treat a
                prompt apart; where not told, those of the row's first forward. The number may be
                smaller than the first forward, which then reads known output too, or larger.

        Raises:
            InvalidValue: a prompt of no token.
        """
        twin = type(self)(self.session)
        if prompts is not None:
            twin._prompts = np.array([check_int("prompts", n, 1) for n in prompts], dtype=np.int64)
        return twin

    @property
    def backend(self) -> Method:
        """The backend of this block."""
        return self.session.backend

    def _rows(self, rows: Sequence[int] | Tensor, field: str) -> Tensor:
        index = torch.as_tensor(rows, dtype=torch.long, device="cpu").reshape(-1)
        B = len(self._seen)
        if len(index) and (int(index.min()) < 0 or int(index.max()) >= B):
            allowed = f"rows from 0 to {B - 1}" if B else "no row: the cache holds none"
            raise InvalidValue(field, index.tolist(), allowed)
        return index

    def _idle(self) -> None:
        if self._step is not None:
            raise RuntimeError("an earlier forward failed half way; start again from cache.new()")

    # Copies

    @torch.inference_mode(False)
    @torch.no_grad()
    def clone(self, rows: Sequence[int] | Tensor | None = None) -> Self:
        """An independent copy of these rows and their state, valid in the same `with` block.

        Continuing from the copy is continuing from here; this cache stays as it is. Memory of other
        rows is not copied. Without `rows` the same as `copy.deepcopy`.

        Args:
            rows: which rows, in this order, repeats allowed; all of them by default.

        Raises:
            InvalidValue: no such row.
        """
        self._idle()
        index = self._rows(range(len(self._seen)) if rows is None else rows, "rows")
        twin = self.new()
        twin.layers = [layer.copied(index.to(layer.geometry.device)) for layer in self.layers]
        twin.columns = self.columns
        twin._seen, twin._decoded = self._seen[index.numpy()], self._decoded[index.numpy()]
        twin._prompts = self._prompts[index.numpy()]
        return twin

    @torch.inference_mode(False)
    @torch.no_grad()
    def go_dense(self, rows: Sequence[int] | Tensor) -> Self:
        """A new cache in which these rows go on under full attention; this one stays as it is.

        Every key and value is taken over at its position, so no token is read again. They are
        those held, bit for bit, but for InfLLM's keys outside its window: these were turned to
        position 0 and are turned back, which leaves them within two epsilons of the model's dtype,
        times the key's norm. The model's own sliding layers go on sliding.

        The cache is valid in the same `with` block, and belongs with all others made so in it:
        their rows can be appended to and replaced by one another.

        Args:
            rows: which rows, in this order.

        Raises:
            InvalidValue: no such row, or a method that drops tokens.
        """
        self._idle()
        if not self.backend.keeps_all:
            raise InvalidValue(
                "backend",
                self.backend.name,
                "a method that keeps every token, as full, quest, infllm and oracle do: full "
                "attention cannot take over where tokens were dropped",
            )
        index = self._rows(rows, "rows")
        twin = type(self)(self.session.full_session)
        twin.columns, twin._seen = self.columns, self._seen[index.numpy()]
        twin._decoded = np.zeros(len(index), dtype=bool)
        twin._prompts = self._prompts[index.numpy()]
        for layer in self.layers:
            ours = index.to(layer.geometry.device)
            if layer.geometry.model_window is not None:
                twin.layers.append(layer.copied(ours))
                continue
            geometry = replace(layer.geometry, method=twin.backend.name, B=len(index))
            made = KeepAll(geometry, twin.backend)
            made.fill(*layer.tokens(ours, twin._seen))
            twin.layers.append(made)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.clone()

    __copy__ = clone  # half a copy would share state that changes in place

    def to(self, *_: Any, **__: Any) -> Self:
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

    # Other rows, or the same in another order

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
        self._prompts = self._prompts[index.cpu().numpy()]
        self._decoded = self._decoded[index.cpu().numpy()]

    @torch.inference_mode(False)
    @torch.no_grad()
    def replace_rows(
        self,
        rows: Sequence[int],
        source: Rows,
        source_rows: Sequence[int] | None = None,
    ) -> None:
        """Rows of this cache become copies of rows of `source`; the others stay untouched.

        Args:
            rows: rows to overwrite.
            source: a cache of the same block, for instance a prefilled `cache.new()` or an earlier
                `clone`.
            source_rows: rows to copy, as many; all of source's by default.

        Raises:
            InvalidValue: rows do not exist, are named twice or do not match in number, or
                `source` comes from another block.
        """
        self._idle()
        self._check_source(source)
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
        self._prompts = self._prompts.copy()
        self._prompts[ours.numpy()] = source._prompts[theirs.numpy()]
        self._decoded[ours.numpy()] = False
        self.columns = max(self.columns, int(self._seen.max()))

    @torch.inference_mode(False)
    @torch.no_grad()
    def append_rows(self, source: Rows) -> None:
        """Copies of all rows of `source` become rows behind those held, which stay untouched.

        Raises:
            InvalidValue: `source` comes from another block or goes on under another method.
        """
        self._idle()
        self._check_source(source)
        B, more = len(self._seen), len(source._seen)
        if B and more:
            # Any row makes room for the new ones.
            self.select_rows([*range(B), *[0] * more])
            self.replace_rows(range(B, B + more), source, range(more))
        elif more:
            taken = source.clone()
            self.layers, self.columns, self._seen = taken.layers, taken.columns, taken._seen
            self._prompts = taken._prompts
            self._decoded = np.zeros(more, dtype=bool)

    def _check_source(self, source: Rows) -> None:
        source._idle()
        if source.session is not self.session:
            raise InvalidValue(
                "source",
                f"a cache of {source.backend.name}",
                f"a cache of {self.backend.name} from the same `with` block",
            )

    # Forgetting the newest tokens

    @property
    def is_croppable(self) -> bool:
        """Whether `crop` is exact for this method, at the lengths the rows have now."""
        return bool(self.layers) and all(
            layer.refuse_crop(self._seen) is None for layer in self.layers
        )

    @property
    def rewindable(self) -> bool:
        """Whether `rewind` is exact for any row at any length.

        A property of method and model alone, the same before the first forward as after any: false
        where the method drops tokens or learns from attention, or where the model slides a window
        in some layer. There `rewind` still works on a row the window has not left yet.
        """
        slides = any(window is not None for window in self.session.windows)
        return self.backend.rewindable and not slides

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
        self._forget(np.arange(len(left)), left, "crop")

    @torch.inference_mode(False)
    @torch.no_grad()
    def rewind(self, row: int, seen: int) -> None:
        """Forget all but the first `seen` tokens of one row; the others stay untouched.

        Args:
            row: which row.
            seen: tokens it is to have seen; as many as it has does nothing.

        Raises:
            InvalidValue: no such row, more tokens than it has, or a method that cannot do so
                exactly: restore a `clone` of the row by `replace_rows` there.
        """
        self._idle()
        (found,) = self._rows([row], "row").tolist()
        had = int(self._seen[found])
        if not 0 <= seen <= had:
            raise InvalidValue("seen", seen, f"from 0 to the {had} tokens of row {found}")
        if seen < had:
            self._forget(np.array([found]), np.array([seen]), "rewind")

    def _forget(self, rows: Counts, seen: Counts, field: str) -> None:
        """Leave rows[i] its first seen[i] tokens, or raise before anything changed."""
        for layer in self.layers:
            if reason := layer.refuse_crop(self._seen[rows]):
                raise InvalidValue(field, reason.value, reason.allowed)
        for layer in self.layers:
            layer.crop(rows, seen)
        longest = int(self._seen.max())
        self._seen = self._seen.copy()
        self._seen[rows] = seen
        self.columns -= longest - int(self._seen.max())
        self._decoded[rows] = False
