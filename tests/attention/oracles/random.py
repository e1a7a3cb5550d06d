"""Oracle of `random`: first tokens, newest tokens, and a uniform sample of those between."""

from __future__ import annotations

from typing import Any

from .layer import Layer

MASK = 0xFFFFFFFF


def mix(x: int) -> int:
    """A fixed permutation of the 32-bit numbers."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & MASK
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & MASK
    return x ^ (x >> 16)


def number(seed: int, layer: int, head: int, position: int) -> int:
    """The number which a token has for good, for this layer and KV head."""
    h = mix(seed & MASK)
    h = mix((h + layer) & MASK)
    h = mix((h + head) & MASK)
    return mix((h + position) & MASK)


class RandomLayer(Layer):
    """Keeps budget - 1 tokens after a forward: of those neither first nor newest, large numbers.

    Which tokens are kept depends on how many were seen, and on nothing else.
    """

    def __init__(
        self,
        *args: Any,
        budget: int,
        sinks: int = 4,
        recent: int | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.budget, self.sinks, self.seed = budget, sinks, seed
        self.recent = recent

    def cut(self) -> None:
        first = max(self.sinks, self.prompt)
        recent = max((self.budget - first) // 2, 1) if self.recent is None else self.recent
        for j in range(self.Hkv):
            middle = [
                (number(self.seed, self.index, j, slot.position), -slot.position)
                for slot in self.slots[j]
                if first <= slot.position < self.n - (recent - 1)
            ]
            # Integers: no rounding, so no margin. Of equal numbers the newer goes.
            surplus = max(len(self.slots[j]) - (self.budget - 1), 0)
            gone = {-minus for _, minus in sorted(middle)[:surplus]}
            self.slots[j] = [slot for slot in self.slots[j] if slot.position not in gone]
