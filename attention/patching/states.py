"""What layers without keys keep of each row: linear attention, state spaces, convolutions."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

# Layer of the model, and number of the state in it.
Place = tuple[int, int]


class States:
    """States of B rows by layer, as transformers' models write and read them.

    They have one size however long a row is, so no budget binds here; and they cannot go back to
    what they were some tokens ago. A row without a token yet has zeros, which is what the models
    take for nothing seen.

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

    @torch.inference_mode(False)
    @torch.no_grad()
    def push(self, place: Place, new: Tensor, kernel: int | None) -> Tensor:
        """Inputs of a convolution, (B, channels, T), behind those kept; the newest stay.

        Args:
            place: of the state.
            new: inputs that come.
            kernel: how many are kept; as many as come the first time by default.

        Returns:
            Those kept before, if any, and the new ones.
        """
        held = self.conv.get(place)
        if held is None:
            size = kernel or new.shape[-1]
            whole = torch.nn.functional.pad(new.detach(), (max(size - new.shape[-1], 0), 0))
        else:
            size, whole = held.shape[-1], torch.cat((held, new.detach()), dim=-1)
        self.conv[place] = whole[..., -size:].clone()
        return whole

    @torch.inference_mode(False)
    @torch.no_grad()
    def write(self, place: Place, new: Tensor) -> Tensor:
        """What a recurrence carries from now on; the copy that is kept."""
        self.recurrent[place] = new.detach().clone()
        return self.recurrent[place]

    def select(self, index: Tensor) -> None:
        """Keep these rows in this order."""
        for kept in (self.conv, self.recurrent):
            for place, x in kept.items():
                kept[place] = x[index.to(x.device)]

    def replace(self, rows: Tensor, source: States, source_rows: Tensor) -> None:
        """Rows become copies of rows of `source`."""
        for kept, other in ((self.conv, source.conv), (self.recurrent, source.recurrent)):
            for place, x in kept.items():
                x[rows.to(x.device)] = other[place][source_rows.to(x.device)]

    def empty(self, rows: Tensor) -> None:
        """These rows have seen nothing."""
        for kept in (self.conv, self.recurrent):
            for x in kept.values():
                x[rows.to(x.device)] = 0

    def copied(self, index: Tensor) -> Self:
        """An independent copy of these rows."""
        twin = type(self)()
        for kept, copy in ((self.conv, twin.conv), (self.recurrent, twin.recurrent)):
            copy.update({place: x[index.to(x.device)] for place, x in kept.items()})
        return twin

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, whatever its length."""
        every = (*self.conv.values(), *self.recurrent.values())
        return sum(x[0].nbytes for x in every if len(x))
