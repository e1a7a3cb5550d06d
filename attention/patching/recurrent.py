"""What layers without keys keep of each row: linear attention, state spaces, convolutions."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor
from transformers import Cache

from attention.core.compiling import changing_state, uncompiled


class States(dict[tuple[str, int, int], Tensor]):
    """States of B rows, as transformers' models write and read them, (B, ...).

    By kind, layer of the model and number in it: "conv" has newest inputs of a short convolution,
    (B, channels, kernel), "recurrent" what a recurrence carries. They have one size however long a
    row is, and cannot go back. Zeros are what the models take for nothing seen.
    """

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of the model that keep something here."""
        return tuple(sorted({layer for _, layer, _ in self}))

    def select(self, index: Tensor) -> None:
        """Keep these rows in this order."""
        self.update(self.copied(index))

    def replace(self, rows: Tensor, source: States, source_rows: Tensor) -> None:
        """Rows become copies of rows of `source`."""
        for place, x in self.items():
            x[rows.to(x.device)] = source[place][source_rows.to(x.device)]

    def empty(self, rows: Tensor) -> None:
        """These rows have seen nothing."""
        for x in self.values():
            x[rows.to(x.device)] = 0

    def copied(self, index: Tensor) -> Self:
        """An independent copy of these rows."""
        return type(self)({place: x[index.to(x.device)] for place, x in self.items()})


class StateCache(Cache):
    """What models ask of a cache besides keys: its columns, and the states of layers without keys.

    Attributes:
        states: of layers without keys.
        columns: input columns fed so far, padding included; what `get_seq_length()` answers.
    """

    is_compileable = False  # shapes grow

    def __init__(self, columns: int = 0) -> None:
        super().__init__(layers=[])
        self.states, self.columns = States(), columns

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Columns fed so far, left padding included: n for a row without padding."""
        return self.columns

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:  # noqa: ARG002
        """Width and offset of a padding mask for more columns: their number, or their places."""
        more = query_length if isinstance(query_length, int) else len(query_length)
        return self.columns + more, 0

    def check_begun(self) -> None:
        """Called before a state changes."""

    def has_previous_state(
        self, layer_idx: int | None = None, state_idx: int | None = None
    ) -> bool:
        """Whether a layer has a state, or any has where none is named."""
        return any(
            layer_idx in (None, layer) and state_idx in (None, at) for _, layer, at in self.states
        )

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The state itself, which models change in place; None before the first forward."""
        return self.states.get(("conv", layer_idx, state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The same of a recurrence."""
        return self.states.get(("recurrent", layer_idx, state_idx))

    @uncompiled
    @changing_state
    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        """Called by the model with new inputs, (B, channels, T); those kept and the new ones."""
        self.check_begun()
        place, new = ("conv", layer_idx, state_idx), conv_states.detach()
        if (stored := self.states.get(place)) is None:
            size = kwargs.get("conv_kernel_size") or new.shape[-1]
            whole = torch.nn.functional.pad(new, (max(size - new.shape[-1], 0), 0))
        else:
            size, whole = stored.shape[-1], torch.cat((stored, new), dim=-1)
        self.states[place] = whole[..., -size:].clone()
        return whole

    @uncompiled
    @changing_state
    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> Tensor:
        """Called by the model with a state behind the new tokens; the copy that is kept."""
        self.check_begun()
        state = self.states["recurrent", layer_idx, state_idx] = recurrent_states.detach().clone()
        return state

    def is_recording_past(self, layer_idx: int) -> bool:  # noqa: ARG002
        """False: states do not go back."""
        return False
