"""Calls with the ids of a growing batch: does this one go on from the last?"""

from __future__ import annotations

import torch
from torch import Tensor


class Following:
    """Tells of each call how much of it the last one held, and where prompts end.

    Objects that `generate()` calls are given ids, nothing else. The first call's width is the
    prompt's. A later call whose ids begin with that prompt belongs to the same generation, however
    many columns longer or shorter it is: drafts of assisted decoding and prompt lookup come and go,
    and beams change places. Other ids start anew. An empty prompt (`inputs_embeds`) says nothing:
    after one, a call that has not one column more than the last starts anew. Where the next prompt
    is the last output, only `forget` can tell.

    Args:
        generated: columns of a first call that are no longer prompt.
        prompt_tokens: width of the prompts, where a first call may hold any number of drafts.
    """

    def __init__(self, generated: int = 0, prompt_tokens: int | None = None) -> None:
        self.prompt = 0
        self._generated, self._prompt_tokens = generated, prompt_tokens
        self._width = 0
        self._ids = torch.empty(0, 0, dtype=torch.int64)

    @property
    def id_bytes(self) -> int:
        """Bytes of the ids kept to tell whether a call goes on from the last one."""
        return self._ids.nbytes

    def forget(self) -> None:
        """The next call starts anew, whatever its ids."""
        self._ids, self._width = self._ids[:0], 0

    def follow(self, ids: Tensor) -> int:
        """Note a call's `ids` (B, n); how many columns of them are the whole last call's, else 0.

        At 0 everything is to be computed from the ids, by the same prompt or by another.
        """
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
            known = self._prompt_tokens
            self.prompt = max(0, width - self._generated) if known is None else min(known, width)
        self._ids, self._width = ids.clone(), width
        return 0

    def _begins(self, ids: Tensor, width: int) -> bool:
        """Whether `ids` begin with the first `width` columns of the last call's."""
        if len(ids) != len(self._ids) or ids.shape[1] < width:
            return False
        return torch.equal(self._ids[:, :width], ids[:, :width])
