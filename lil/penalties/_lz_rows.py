"""Rows of the LZ penalty, each with parameters of its own, computed together on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from lil.compression.matching import EMPTY
from lil.penalties import _lz_state
from lil.penalties._lz_state import LZParameters, LZState
from lil.penalties._lz_triton import TritonLZ, refusal


@functools.lru_cache(maxsize=16)
def fused_on(device: torch.device) -> bool:
    """Whether Triton computes the rows of a device together; torch computes them elsewhere."""
    return device.type != "cpu" and refusal(device) is None


class LZRows:
    """The last tokens of each row, where they occurred before, and its parameters.

    `history` is (B, n), right-aligned with `EMPTY` before short rows. Steps write in place.
    """

    def __init__(self, parameters: Sequence[LZParameters], history: Tensor) -> None:
        self._begin(parameters, _lz_state.new_state(parameters, history.device))
        self._kernel.load(history.long())

    def _begin(self, parameters: Sequence[LZParameters], state: LZState) -> None:
        self.parameters, self.state = list(parameters), state
        device = state.tokens.device
        tables = functools.partial(_lz_state.tables, self.parameters, device=device)
        self._kernel = TritonLZ(state, tables)

    @property
    def nbytes(self) -> int:
        """Bytes of what is remembered."""
        return sum(x.nbytes for x in self.state)

    def push(self, newest: Tensor, live: Tensor | None = None) -> None:
        """Append `newest` (B,), leaving rows alone where `live` (B,) is False."""
        self._kernel.step(newest.long(), live, None, None)

    def lower(
        self, scores: Tensor, places: Tensor | None = None, newest: Tensor | None = None
    ) -> Tensor:
        """The scores given, lowered in place after `newest` (B,) has been appended.

        `places` (B,) are the rows' rows in the scores; None: their own.
        """
        if scores.stride(1) != 1:
            return scores.copy_(self.lower(scores.contiguous(), places, newest))
        self._kernel.step(None if newest is None else newest.long(), None, scores, places)
        return scores

    def rows(self, which: Sequence[int], at: Tensor) -> LZRows:
        """These rows alone, in this order; `at` are their indices on the device."""
        parameters = [self.parameters[row] for row in which]
        state = LZState(*(x[at] for x in self.state))
        return self._with(parameters, _resized(state, parameters))

    def joined(self, other: LZRows) -> LZRows:
        """This one's rows and then those of another."""
        every = self.parameters + other.parameters
        pairs = zip(_resized(self.state, every), _resized(other.state, every), strict=True)
        return self._with(every, LZState(*map(torch.cat, pairs)))

    def _with(self, parameters: Sequence[LZParameters], state: LZState) -> LZRows:
        twin = LZRows.__new__(LZRows)
        twin._begin(parameters, LZState(*(x.contiguous() for x in state)))
        return twin


def _resized(state: LZState, parameters: Sequence[LZParameters]) -> LZState:
    """`state` with as many places as these rows need."""
    C = max(row.size for row in parameters)
    E = max(len(row.exempt) for row in parameters)
    return state._replace(
        tokens=_wide(state.tokens, C, EMPTY),
        lengths=_wide(state.lengths, C, 0),
        exempt=_wide(state.exempt, E, EMPTY),
    )


def _wide(x: Tensor, columns: int, fill: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, columns - x.shape[1]), value=fill)
