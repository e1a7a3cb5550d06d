"""Whether rounding decides a token: a text is read again with last bits changed at random."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from choice_ties import backend_of
from compare_stores import Parting
from torch import Tensor, nn

from attention.testing.driving import prefill, step

#: Readings side by side.
READINGS = 16
#: How far apart two neighbouring float32 numbers are at most, as a share of them.
LAST_BIT = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class RoundedReadings:
    """What a text read again is followed by, where only last bits differ.

    Attributes:
        readings: how many.
        mine: of them, those after which this run's token is the likeliest.
        theirs: those after which the other run's is.
        changed: tokens of the text in whose place one of the readings has another.
    """

    readings: int
    mine: int
    theirs: int
    changed: int

    @property
    def both(self) -> bool:
        """Whether rounding alone gives the one token and the other."""
        return self.mine > 0 and self.theirs > 0


def rounded_readings(model: Any, parting: Parting, seed: int = 0) -> RoundedReadings:
    """Read the common text again, with torch, each time with other last bits.

    Each output of a linear layer is changed by up to one or two last bits, which is less than what
    another order of the sum does to most of them: nothing else differs between these readings.

    Args:
        model: of `lil.decode`, in float32.
        parting: where the runs part, and under which method.
        seed: of the changes.
    """
    likeliest = _likeliest(model, parting, seed)
    text = torch.tensor(parting.common[parting.reused :], dtype=torch.long)
    mine, theirs = (int((likeliest[-1] == token).sum()) for token in parting.tokens)
    changed = (likeliest[:-1] != text[:, None]).any(dim=1)
    return RoundedReadings(READINGS, mine, theirs, int(changed.sum()))


@torch.inference_mode()
def _likeliest(model: Any, parting: Parting, seed: int) -> Tensor:
    """Tokens that are the likeliest behind the prompt and each token of the text, (T, readings)."""
    known, rest = parting.common[: parting.reused], parting.common[parting.reused :]
    text = torch.tensor([*parting.prompt, *known])
    with _last_bits(model, seed), backend_of(parting).on(model, "torch") as cache:
        own = cache.new(prompts=[len(parting.prompt)] * READINGS)
        found = [prefill(model, own, [text] * READINGS)[:, -1].argmax(-1)]
        for token in rest:
            found.append(step(model, own, torch.tensor([token] * READINGS)).argmax(-1))
    return torch.stack(found)


@contextmanager
def _last_bits(model: nn.Module, seed: int) -> Iterator[None]:
    """Changes what linear layers give."""
    generator = torch.Generator().manual_seed(seed)
    called = 0

    def changed(_layer: nn.Module, _given: Any, out: Tensor) -> Tensor:
        nonlocal called
        called += 1
        share = 2 * torch.rand(out.shape, generator=generator) - 1
        return out * (1 + LAST_BIT * share)

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    hooks = [layer.register_forward_hook(changed) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    # A model that computes without its layers would be read as it is, and look certain.
    if not called:
        raise RuntimeError("no linear layer was called")
