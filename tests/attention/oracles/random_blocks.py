"""Oracle of `random` with cuts every so many steps, each by new numbers, as in Random Attention."""

from __future__ import annotations

from typing import Any

from .random import MASK, RandomLayer, mix


def drawn(seed: int, layer: int, head: int, seen: int, position: int) -> int:
    """The number which a token draws at the cut after `seen` tokens."""
    h = mix(seed & MASK)
    for part in (layer, head, seen, position):
        h = mix((h + part) & MASK)
    return h


class RandomBlocksLayer(RandomLayer):
    """Once `budget` tokens are held, budget - every stay: first, newest, and a sample of the rest.

    every=1 is RandomLayer, which cuts after each forward by numbers that tokens have for good.

    Args:
        recent: newest tokens that stay; `every` if not given.
        prefix: generated tokens that stay behind a kept prompt, while `every` others may.
    """

    def __init__(self, *args: Any, every: int = 1, prefix: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.every, self.prefix = every, prefix
        if every < 1 or prefix < 0:
            raise ValueError(f"every {every}, prefix {prefix}")
        if prefix and (every == 1 or not self.keep_prompt):
            raise ValueError("prefix needs keep_prompt and every > 1")
        if every > 1:
            self.places()

    def places(self) -> tuple[int, int]:
        """How many first and how many newest tokens stay."""
        recent = self.every if self.recent is None else self.recent
        first = max(self.sinks, self.prompt)
        others = self.budget - self.every - recent
        if recent < 1 or others - first < 1:
            raise ValueError(
                f"budget {self.budget} less {self.every} holds no sample besides {first} first "
                f"and {recent} newest tokens"
            )
        return max(first, min(first + self.prefix, others - self.every)), recent

    def cut(self) -> None:
        if self.every == 1:
            super().cut()
            return
        first, recent = self.places()
        held = len(self.slots[0])
        if held < self.budget:
            return
        for j, slots in enumerate(self.slots):
            between = slots[first : held - recent]
            # Of equal numbers the newer goes.
            order = sorted(
                (drawn(self.seed, self.index, j, self.n, s.position), -s.position) for s in between
            )
            gone = {-minus for _, minus in order[: held - (self.budget - self.every)]}
            self.slots[j] = [s for s in slots if s.position not in gone]
