"""Random texts through the LZ penalty's kernel, compared bit for bit with torch.

TRITON_INTERPRET=1 python tests/lil/lz_on_triton.py ROWS
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from lil import LZPenalty
from lil.compression.matching import EMPTY
from lil.penalties import lz
from lil.penalties._lz_rows import FORMULAS, LZRows

STEPS = 30


def drawn_penalty(rng: random.Random, V: int) -> LZPenalty:
    formula, buffer = rng.choice(FORMULAS), rng.choice((1, 2, 3, 6, 9))
    window = rng.randint(1, rng.choice((6, 24, 60)))
    return LZPenalty(
        alpha=rng.choice((0.0, 0.1, 0.15, 1.0, 2.3)),
        window=window + buffer * (formula == "rate"),
        buffer=buffer,
        formula=formula,
        exempt=tuple(rng.sample(range(V + 2), rng.choice((0, 0, 1, 3)))),
    )


@dataclass
class Text:
    """One row: its tokens so far, and torch's memory of them."""

    penalty: LZPenalty
    tokens: list[int]
    V: int

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.memory = self.penalty.begin(padded([self.tokens]), self.V)

    def grow(self, token: int) -> None:
        self.tokens.append(token)
        self.memory = self.penalty.push(self.memory, torch.tensor([token]), None)

    def scores(self, raw: Tensor) -> Tensor:
        return self.penalty.apply(self.memory, raw[None])[0]


def padded(rows: list[list[int]]) -> Tensor:
    most = max(map(len, rows))
    full = [[EMPTY] * (most - len(row)) + row for row in rows]
    return torch.tensor(full, dtype=torch.int64).view(len(rows), most)


def compared(calls: int, seed: int, rows: int) -> int:
    """Compare at least `calls` scored rows with torch's; how many there were.

    Rows come, leave, go back and change places; a token more reaches all of them or some.

    Raises:
        AssertionError: a bit differs.
    """
    lz.fused_on = lambda _: False  # type: ignore[assignment]
    rng, noise, made = random.Random(seed), torch.Generator().manual_seed(seed), 0
    while made < calls:
        V = rng.choice((3, 5, 9, 17, 40, 70))
        dtype = rng.choice((torch.float32, torch.float64))

        def fresh(V: int = V) -> Text:
            # Some tokens are beyond the scores.
            tokens = [rng.randrange(V + 1) for _ in range(rng.choice((0, 3, 20, 80)))]
            return Text(drawn_penalty(rng, V), tokens, V)

        def begun(texts: list[Text]) -> LZRows:
            parameters = [text.penalty.parameters for text in texts]
            return LZRows(parameters, padded([text.tokens for text in texts]))

        texts = [fresh() for _ in range(rng.randint(1, rows))]
        memory = begun(texts)
        for _ in range(STEPS):
            what = rng.random()
            if what < 0.1:  # some leave, the others change places
                stay = rng.sample(range(len(texts)), rng.randint(1, len(texts)))
                texts, memory = [texts[i] for i in stay], memory.rows(stay, torch.tensor(stay))
            elif what < 0.2:
                more = [fresh() for _ in range(rng.randint(1, 3))]
                texts, memory = texts + more, memory.joined(begun(more))
            elif what < 0.25:  # all go back
                for text in texts:
                    del text.tokens[len(text.tokens) // 2 :]
                    text.begin()
                memory = begun(texts)
            every = rng.random() < 0.6
            live = [every or rng.random() < 0.6 for _ in texts]
            new = [
                rng.choice(text.tokens[-12:]) if text.tokens and rng.random() < 0.6
                else rng.randrange(V + 1)
                for text in texts
            ]  # fmt: skip
            raw = torch.randn(len(texts) + 2, V, generator=noise, dtype=dtype) * 3
            raw[torch.rand(raw.shape, generator=noise) < 0.05] = -torch.inf
            places, wanted = rng.sample(range(len(raw)), len(texts)), raw.clone()
            for i, text in enumerate(texts):
                if live[i]:
                    text.grow(new[i])
                wanted[places[i]] = text.scores(raw[places[i]])
            at, newest = torch.tensor(places), torch.tensor(new)
            if not every:
                memory.push(newest, torch.tensor(live))
            lowered = memory.lower(raw, at, newest if every else None)
            # Bits: 0.0 and -0.0 are two.
            whole = torch.int32 if dtype == torch.float32 else torch.int64
            assert torch.equal(lowered.view(whole), wanted.view(whole)), [t.penalty for t in texts]
            made += len(texts)
    return made


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("equal", compared(int(sys.argv[1]), seed=0, rows=40))
