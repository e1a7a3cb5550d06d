"""What hypothesis draws besides the method: shapes, ragged prompts, chunks and steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st

import attention
from properties.backends import BACKENDS, Draw, least_room, of_shape
from properties.feeding import Shape, Text, text


def longest_prompt(backend: attention.Backend) -> int | None:
    """What a method that keeps prompts takes; None for any."""
    if not getattr(backend, "keep_prompt", False):
        return None
    return backend.budget - least_room(backend)


@dataclass(frozen=True)
class Case:
    """One drawn run.

    Attributes:
        forwards: tokens each row brings in each forward of its prompt, (forwards, B).
        steps: decode steps after it.
    """

    backend: attention.Backend
    shape: Shape
    forwards: tuple[tuple[int, ...], ...]
    steps: int
    seed: int
    reveal: bool = False

    @property
    def rows(self) -> int:
        return len(self.forwards[0])

    @property
    def prompts(self) -> list[int]:
        return [sum(counts) for counts in zip(*self.forwards, strict=True)]

    @property
    def whole(self) -> tuple[tuple[int, ...], ...]:
        """All forwards, decode steps included."""
        return (*self.forwards, *[(1,) * self.rows] * self.steps)

    def texts(self, more: int = 0) -> list[Text]:
        """A text a row, and that many tokens more than are fed."""
        return [
            text(self.shape, n + self.steps + more, self.seed + r, self.reveal)
            for r, n in enumerate(self.prompts)
        ]


def columns(prompts: Sequence[int], widths: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Tokens each row brings per forward, when left-padded prompts come in chunks of `widths`."""
    longest, end, forwards = max(prompts), 0, []
    for width in widths:
        start, end = end, end + width
        forwards.append(tuple(end - max(start, min(longest - n, end)) for n in prompts))
    return tuple(forwards)


@st.composite
def chunks(draw: Draw, total: int, least: int = 1) -> tuple[int, ...]:
    """A split of `total` columns; none narrower than `least`, where there are so many."""
    widths: list[int] = []
    while (left := total - sum(widths)) > 0:
        width = draw(st.integers(least, max(left, least)))
        widths.append(left if left - width < least else width)
    return tuple(widths)


@st.composite
def shapes(draw: Draw, **fixed: Any) -> Shape:
    drawn: dict[str, Any] = {"layers": 1, "dtype": torch.float64}
    for name, size in (("Hkv", (1, 3)), ("G", (1, 4))):
        drawn[name] = draw(st.integers(*size))
    drawn["D"] = draw(st.sampled_from((2, 4, 6)))
    return Shape(**(drawn | fixed))


@st.composite
def cases(
    draw: Draw,
    backend: st.SearchStrategy[attention.Backend],
    *,
    shape: st.SearchStrategy[Shape] | None = None,
    layers: st.SearchStrategy[int] | None = None,
    rows: int = 4,
    least_rows: int = 1,
    prompt: int = 60,
    steps: int = 40,
    least_chunk: int = 1,
    reveal: bool = False,
) -> Case:
    """A method, a shape and a ragged batch of prompts in chunks.

    Args:
        rows, prompt, steps: the most of each; least_rows the fewest rows.
        least_chunk: columns of the narrowest chunk, where the prompt has as many.
        reveal: outputs are the probabilities of tokens; needs D of at least prompt + steps.
    """
    chosen = draw(backend)
    longest = min(prompt, longest_prompt(chosen) or prompt)
    lengths = draw(st.lists(st.integers(1, longest), min_size=least_rows, max_size=rows))
    whole = draw(st.booleans())
    widths = (max(lengths),) if whole else draw(chunks(max(lengths), least_chunk))
    drawn = draw(shapes() if shape is None else shape)
    if reveal or (chosen.name == "adamas" and drawn.D != 4):  # a power of two
        drawn = replace(drawn, D=64 if reveal else 8)
    if layers is not None:
        drawn = replace(drawn, layers=draw(layers))
    elif chosen.name in ("lessismore", "kascade"):  # alone a layer reads everything
        drawn = replace(drawn, layers=2)
    # The simplest case of all always comes first; in a small run it would be most of it.
    seed = draw(st.integers(0, 999).filter(bool))
    return Case(
        backend=of_shape(chosen, drawn.layers, drawn.Hkv),
        shape=drawn,
        forwards=columns(lengths, widths),
        steps=draw(st.integers(1, steps)),
        seed=seed,
        reveal=reveal,
    )


def of(method: str, **how: Any) -> st.SearchStrategy[Case]:
    """Cases of a method with any options."""
    return cases(BACKENDS[method](), **how)


def each(
    methods: Sequence[str], build: Callable[[str], st.SearchStrategy[Any]] = of
) -> list[st.SearchStrategy[Any]]:
    """What `build` makes of each of these methods."""
    return [build(method) for method in methods]


# How far sums of probabilities may be off, relative, by the dtype of the model.
SUMS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-5, torch.float16: 1e-5}


@st.composite
def summing(draw: Draw, backend: Callable[[int], st.SearchStrategy[attention.Backend]]) -> Case:
    """Any dtype, and prompts long enough for sums in 16 bits to stop growing.

    Args:
        backend: what to draw for prompts of at most n tokens.
    """
    lengths = draw(st.lists(st.integers(1, 30) | st.just(700), min_size=1, max_size=2))
    n = max(lengths)
    widths = draw(chunks(n) if n < 700 else st.just((n,)))
    shape = draw(shapes(dtype=draw(st.sampled_from(tuple(SUMS)))))
    steps, seed = draw(st.integers(1, 25)), draw(st.integers(0, 99).filter(bool))
    return Case(draw(backend(n)), shape, columns(lengths, widths), steps, seed)
