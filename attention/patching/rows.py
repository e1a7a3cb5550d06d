"""The numbers that a cache keeps of each row, and what a forward brings to them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attention.core import devices
from attention.core.step import Counts, Step
from attention.errors import InvalidValue
from attention.layers.layer import Geometry

Flags = npt.NDArray[np.bool_]


class RowCounts(NamedTuple):
    """Numbers of B rows, (B,) on the host; taken together wherever rows are copied or reordered.

    Attributes:
        seen: real tokens seen.
        prompts: first tokens that are prompt; stated, or those of the row's first forward.
        decoded: whether the last token came as a decode query.
        whole: first tokens that are read as a prompt: `prompts` where the caller stated them before
            the first forward, else 0 once what comes is output in any case; until then -1.
        beyond: whether keys are turned for a text beyond the model's switch, see `Anatomy`.
    """

    seen: Counts
    prompts: Counts
    decoded: Flags
    whole: Counts
    beyond: Flags

    @classmethod
    def of_prompts(cls, prompts: Counts, beyond: bool = False) -> RowCounts:
        """Rows that have seen nothing and whose prompts have so many tokens."""
        nothing, no = np.zeros(0, np.int64), np.zeros(0, np.bool_)
        return cls(nothing, prompts, no, prompts, np.full(len(prompts), beyond))

    def before(self, rows: int) -> RowCounts:
        """The same before the first forward, of this many rows if the caller stated none."""
        if len(self.prompts) not in (0, rows):
            allowed = f"a number for each of the {rows} rows"
            raise InvalidValue("prompts", self.prompts.tolist(), allowed)
        nothing, no = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
        if len(self.prompts):
            return self._replace(seen=nothing, decoded=no)
        return RowCounts(nothing, nothing, no, nothing - 1, no)

    def read_whole(self, new: Counts, drafts: int, single: bool) -> Counts:
        """How many of each row's first tokens are read as a prompt, (B,); the others decode.

        Where the caller stated nothing, a prompt lasts until a row's first decode step. Of the new
        tokens so many at the end may be drafts of what follows a prompt; they may be one column.
        """
        unknown = self.whole < 0
        if single or drafts:
            unknown &= self.seen == 0
        return np.where(unknown, self.seen + new - drafts, np.maximum(self.whole, 0))

    def step(self, new: Counts, T: int, device: torch.device, drafts: int, dense: bool) -> Step:
        """The step of T columns, the newest of them `drafts`; `dense`: all are read as a prompt."""
        # The next token of rows whose prompts have been read is a decode query by itself.
        later = T == 1 and bool((self.seen >= self.prompts).all())
        whole = None if later else self.read_whole(new, drafts, single=T == 1)
        prompt = np.where(self.prompts == 0, new - drafts, self.prompts)
        return Step(self.seen, new, T, device, prompt, self.seen + new if dense else whole)

    def after(self, step: Step, decoded: bool) -> RowCounts:
        """The same after a forward, by which all last tokens came as decode queries or not."""
        every, whole = np.full(step.rows, decoded), self.whole
        if (whole < 0).any():
            begun = (step.decode & (self.seen > 0)) | (step.behind > 0)
            whole = np.where(begun, np.maximum(whole, 0), whole)
        rows = RowCounts(step.seen, step.prompt, every, whole, self.beyond)
        rows.seen[step.idle], rows.decoded[step.idle] = 0, False
        return rows

    def select(self, index: Counts) -> RowCounts:
        """Those of these rows, in this order."""
        return RowCounts._make(numbers[index] for numbers in self)

    def replaced(self, rows: Counts, source: RowCounts, source_rows: Counts) -> RowCounts:
        """The same with rows of another cache in the place of these; they decode nothing yet."""
        changed = RowCounts._make(numbers.copy() for numbers in self)
        for numbers, theirs in zip(changed, source, strict=True):
            numbers[rows] = theirs[source_rows]
        changed.decoded[rows] = False
        return changed

    def cut(self, rows: Counts, seen: Counts) -> RowCounts:
        """The same with rows[i] having seen seen[i] tokens, none of them by a decode step.

        What comes then is output, but in a row that holds nothing any more.
        """
        changed = RowCounts._make(numbers.copy() for numbers in self)
        whole = self.whole[rows]
        changed.whole[rows] = np.where(whole > 0, whole, np.where(seen > 0, 0, -1))
        changed.seen[rows], changed.decoded[rows] = seen, False
        return changed

    def undecoded(self) -> RowCounts:
        """The same with no row decoded yet."""
        return self._replace(decoded=np.zeros_like(self.decoded))


def new_tokens(mask: Tensor | None, past: Counts, columns: int, T: int) -> Counts:
    """Real tokens each row brings among T new columns, (B,), where `past` were seen before.

    The padding mask is (B or 1, columns + T), left padded; None where all is real.
    """
    B = len(past)
    everything = np.full(B, T, dtype=np.int64)
    if mask is None:
        return everything
    if mask.ndim != 2 or mask.shape[-1] != columns + T or mask.shape[0] not in (1, B):
        allowed = f"a padding mask of shape ({B}, {columns + T}), or None"
        raise InvalidValue("attention_mask", tuple(mask.shape), allowed)
    if T == 1 and past.all() and not devices.is_synchronous(mask.device):
        return everything  # all rows are past their padding; looking would wait for the device
    real = np.broadcast_to(mask[:, -T:].bool().cpu().numpy(), (B, T))
    new: Counts = real.sum(-1).astype(np.int64)
    first = real.argmax(-1)
    if (new + first != T)[new > 0].any() or (new < T)[past > 0].any():
        allowed = "left padding: in each row zeros, if any, before the first real token"
        raise InvalidValue("attention_mask", "zeros behind real tokens", allowed)
    if past.any() and (mask[:, :-T].bool().sum(-1).cpu().numpy() < past).any():
        allowed = "ones for all tokens seen before: none of them can be hidden any more"
        raise InvalidValue("attention_mask", "zeros where tokens were seen", allowed)
    return new


def check_positions(position_ids: Tensor | None, step: Step) -> None:
    """Positions must count the real tokens before each token; padding may have any."""
    if position_ids is None or (step.decode and not devices.is_synchronous(step.device)):
        return
    host_positions = position_ids.cpu().numpy()
    due = (step.past + step.new - step.T)[:, None] + np.arange(step.T)
    wrong = (host_positions != due) & (due >= step.past[:, None])
    wrong[step.idle] = False
    if wrong.any():
        row, column = (int(x[0]) for x in np.nonzero(wrong))
        got = int(np.broadcast_to(host_positions, due.shape)[row, column])
        allowed = f"{due[row, column]} in row {row}, column {column}: the number of real tokens "
        allowed += "before it (attention_mask.cumsum(-1) - 1; cache.seen[:, None] when decoding)"
        raise InvalidValue("position_ids", got, allowed)


def check_kind(index: int, stored: Geometry | Tensor, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Tensors must be of the dtype and device of those stored, in layer `index`."""
    if q.dtype is k.dtype is v.dtype is stored.dtype and k.device == stored.device:
        return
    got = f"queries {q.dtype}, keys {k.dtype}, values {v.dtype} on {k.device}"
    allowed = f"{stored.dtype} on {stored.device} as before in layer {index}: a model that was "
    allowed += "moved or converted needs a cache.new(); autocast mixes dtypes and is not supported"
    raise InvalidValue("model", got, allowed)
