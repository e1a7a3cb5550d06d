"""Reading what a forward brings: which columns are real tokens, and whether positions fit."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from attention.core import devices
from attention.core.step import Counts, Step
from attention.errors import InvalidValue
from attention.layers.layer import Geometry
from attention.patching.rows import RowCounts


def new_tokens(mask: Tensor | None, past: Counts, columns: int, T: int) -> Counts:
    """Real tokens each row brings among T new columns, (B,).

    Args:
        mask: padding mask (B or 1, columns + T), left padded; None where all is real.
        past: real tokens seen before, (B,).
        columns: columns fed before.
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


def open_step(
    q: Tensor,
    mask: Tensor | None,
    position_ids: Tensor | None,
    rows: RowCounts,
    columns: int,
    drafts: int,
    dense: bool = False,
) -> Step:
    """The step of a forward whose queries are q, (B, Hq, T, D).

    Args:
        mask, columns: as in `new_tokens`.
        position_ids: what the model was given, or None.
        rows: what is known of each row, before this forward.
        drafts: newest columns that are known to be drafts of what follows a prompt.
        dense: whether all columns are read as a prompt is.
    """
    B, _, T, _ = q.shape
    if len(rows.prompts) != B:
        raise InvalidValue("prompts", rows.prompts.tolist(), f"a number for each of the {B} rows")
    new = new_tokens(mask, rows.seen, columns, T)
    # The next token of rows whose prompts have been read is a decode query by itself.
    later = T == 1 and bool((rows.seen >= rows.prompts).all())
    whole = None if later else rows.read_whole(new, drafts, single=T == 1)
    if dense:
        whole = rows.seen + new
    prompt = np.where(rows.prompts == 0, new - drafts, rows.prompts)
    step = Step(rows.seen, new, T, q.device, prompt, whole)
    check_positions(position_ids, step)
    return step
