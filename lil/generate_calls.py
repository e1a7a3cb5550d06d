"""Calls with the ids of a growing batch: does this one go on from the last?"""

from __future__ import annotations

import torch
from torch import Tensor


class Following:
    """Tells of each call whether it adds one column to the last call's ids, and where prompts end.

    Objects that `generate()` calls are given ids, nothing else. A call that adds one column goes on
    from the last one. If it has one column more but other generated tokens after the same prompts,
    beams have changed places. Any other call starts anew.

    Args:
        generated: columns of a first call that are no longer prompt.
    """

    def __init__(self, generated: int = 0) -> None:
        self.prompt = 0
        self._generated = generated
        self._width = 0
        self._ids = torch.empty(0, 0, dtype=torch.int64)

    @property
    def id_bytes(self) -> int:
        """Bytes of the ids kept to tell whether a call goes on from the last one."""
        return self._ids.nbytes

    def forget(self) -> None:
        """The next call starts anew, whatever its ids."""
        self._ids, self._width = self._ids[:0], 0

    def follow(self, ids: Tensor) -> bool:
        """Note a call's `ids` (B, n); True if they are the last call's with one more column."""
        rows, width = ids.shape
        if rows == self._ids.shape[0] and width == self._width + 1:
            if torch.equal(self._ids[:, : self._width], ids[:, :-1]):
                if width > self._ids.shape[1]:
                    # Twice the room, so that a token costs a copy of one column on average.
                    self._ids = torch.cat((self._ids, torch.empty_like(self._ids)), dim=1)
                self._ids[:, self._width] = ids[:, -1]
                self._width = width
                return True
            # Beams that changed places: other rows, the same prompts.
            same = torch.equal(self._ids[:, : self.prompt], ids[:, : self.prompt])
        else:
            same = False
        if not same:
            self.prompt = max(0, width - self._generated)
        self._ids, self._width = ids.clone(), width
        return False
