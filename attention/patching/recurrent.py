"""What layers without keys keep of each row: linear attention, state spaces, convolutions."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor
from transformers import Cache

from attention.core.compiling import changing_state, uncompiled

# Layer of the model, and number of the state in it.
Place = tuple[int, int]


class States:
    """States of B rows by layer, as transformers' models write and read them.

    They have one size however long a row is, so no budget binds here, and they cannot go back. A
    row without a token yet has zeros, which is what the models take for nothing seen.

    Attributes:
        conv: newest inputs of a short convolution, (B, channels, kernel), by place.
        recurrent: what a recurrence carries, (B, ...), by place.
    """

    def __init__(self) -> None:
        self.conv: dict[Place, Tensor] = {}
        self.recurrent: dict[Place, Tensor] = {}

    def __bool__(self) -> bool:
        return bool(self.conv or self.recurrent)

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of the model that keep something here."""
        return tuple(sorted({layer for layer, _ in (*self.conv, *self.recurrent)}))

    def clear(self) -> None:
        """Forget everything."""
        self.conv.clear()
        self.recurrent.clear()

    @changing_state
    def push(self, place: Place, new: Tensor, kernel: int | None) -> Tensor:
        """Inputs of a convolution, (B, channels, T), behind those kept; all, of which some stay."""
        stored = self.conv.get(place)
        if stored is None:
            size = kernel or new.shape[-1]
            whole = torch.nn.functional.pad(new.detach(), (max(size - new.shape[-1], 0), 0))
        else:
            size, whole = stored.shape[-1], torch.cat((stored, new.detach()), dim=-1)
        self.conv[place] = whole[..., -size:].clone()
        return whole

    @changing_state
    def write(self, place: Place, new: Tensor) -> Tensor:
        """What a recurrence carries from now on; the copy that is kept."""
        self.recurrent[place] = new.detach().clone()
        return self.recurrent[place]

    def select(self, index: Tensor) -> None:
        """Keep these rows in this order."""
        for by_place in (self.conv, self.recurrent):
            for place, x in by_place.items():
                by_place[place] = x[index.to(x.device)]

    def replace(self, rows: Tensor, source: States, source_rows: Tensor) -> None:
        """Rows become copies of rows of `source`."""
        for by_place, other in ((self.conv, source.conv), (self.recurrent, source.recurrent)):
            for place, x in by_place.items():
                x[rows.to(x.device)] = other[place][source_rows.to(x.device)]

    def empty(self, rows: Tensor) -> None:
        """These rows have seen nothing."""
        for by_place in (self.conv, self.recurrent):
            for x in by_place.values():
                x[rows.to(x.device)] = 0

    def copied(self, index: Tensor) -> Self:
        """An independent copy of these rows."""
        twin = type(self)()
        for by_place, copy in ((self.conv, twin.conv), (self.recurrent, twin.recurrent)):
            copy.update({place: x[index.to(x.device)] for place, x in by_place.items()})
        return twin

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, whatever its length."""
        every = (*self.conv.values(), *self.recurrent.values())
        return sum(x[0].nbytes for x in every if len(x))


class StateCache(Cache):
    """What layers without keys ask of a cache, and the states that they keep in it."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.states = States()

    def check_begun(self) -> None:
        """Called before a state changes."""

    def has_previous_state(
        self, layer_idx: int | None = None, state_idx: int | None = None
    ) -> bool:
        """Whether a layer has a state, or any has where none is named."""
        named = layer_idx, state_idx
        places = (*self.states.conv, *self.states.recurrent)
        return any(all(n in (None, x) for n, x in zip(named, p, strict=True)) for p in places)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The state itself, which models change in place; None before the first forward."""
        return self.states.conv.get((layer_idx, state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """The state itself, which models change in place; None before the first forward."""
        return self.states.recurrent.get((layer_idx, state_idx))

    @uncompiled
    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: Any,
    ) -> Tensor:
        """Called by the model with new inputs; those kept and the new ones."""
        self.check_begun()
        return self.states.push((layer_idx, state_idx), conv_states, conv_kernel_size)

    @uncompiled
    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> Tensor:
        """Called by the model with a state behind the new tokens."""
        self.check_begun()
        return self.states.write((layer_idx, state_idx), recurrent_states)

    def is_recording_past(self, layer_idx: int) -> bool:  # noqa: ARG002
        """False: states do not go back."""
        return False
