"""Calls with the ids of a growing batch: does this one go on from the last?"""

from __future__ import annotations

import torch
from torch import Tensor


class CallSequence:
    """Says of each call how much of it the last call held, and where prompts end.

    All of a first call is prompt, or what a subclass knows (`prompt_width`). A later call whose ids
    begin with that prompt belongs to the same generation: drafts of assisted decoding come and go,
    and beams change places. Other ids start anew. After an empty prompt (`inputs_embeds`) a call
    that has not one column more than the last starts anew. Where the next prompt is the last
    output, call `forget`.
    """

    def __init__(self) -> None:
        self.prompt = 0
        self._width = 0
        self._ids = torch.empty(0, 0, dtype=torch.int64)

    def forget(self) -> None:
        """The next call starts anew, whatever its ids."""
        self._ids, self._width = self._ids[:0], 0

    def prompt_width(self, ids: Tensor) -> int:
        """How many columns of a first call's `ids` (B, n) are prompt."""
        return ids.shape[1]

    def follow(self, ids: Tensor) -> int:
        """Note a call's `ids` (B, n); how many columns of them are the whole last call's."""
        width, last = ids.shape[1], self._width
        if self._begins(ids, last) and (self.prompt or width == last + 1):
            if width > self._ids.shape[1]:
                # Twice the room, so that a token costs a copy of one column on average.
                room = self._ids.new_empty(len(ids), 2 * width)
                room[:, :last] = self._ids[:, :last]
                self._ids = room
            self._ids[:, last:width] = ids[:, last:]
            self._width = width
            return last
        if not (self._begins(ids, self.prompt) and (self.prompt or width == last + 1)):
            self.prompt = self.prompt_width(ids)
        self._ids, self._width = ids.clone(), width
        return 0

    def _begins(self, ids: Tensor, width: int) -> bool:
        """Whether `ids` begin with the first `width` columns of the last call's."""
        if len(ids) != len(self._ids) or ids.shape[1] < width:
            return False
        return torch.equal(self._ids[:, :width], ids[:, :width])
