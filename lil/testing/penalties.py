"""What a penalty must hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from attention.testing.broken import require
from lil.penalties import PENALTIES, Penalty
from lil.testing.declared import parameters

V, PAD = 64, 63
#: Rows' texts: a loop, fresh tokens with repeats, a few tokens, none.
_draw = random.Random(0)
TEXTS: tuple[list[int], ...] = (
    [1, 2, 3, 4, 5, 6, 7] * 9,
    [_draw.randrange(20) for _ in range(40)],
    [8, 9, 8, 9],
    [],
)
SCORES = torch.linspace(-3, 3, len(TEXTS) * V, dtype=torch.float64).view(len(TEXTS), V).roll(5, 1)


def _same(got: Tensor, want: Tensor, found: str) -> None:
    """Raise Breach where scores differ."""
    near = torch.isclose(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)
    require(got.shape == want.shape and bool(near.all()), found)


def _alone(penalty: Penalty, text: list[int], row: int) -> Tensor:
    """`penalise` of one row by itself, (1, V)."""
    lengths = torch.tensor([len(text)])
    return penalty.penalise(torch.tensor([text]).long(), lengths, SCORES[[row]])


def _padded(fill: int, before: int = 0) -> tuple[Tensor, Tensor]:
    """The texts right-aligned, (B, n), with `fill` before them; their lengths, (B,)."""
    n = max(map(len, TEXTS)) + before
    rows = [[fill] * (n - len(text)) + text for text in TEXTS]
    return torch.tensor(rows), torch.tensor([len(text) for text in TEXTS])


def declared(penalty: Penalty) -> str:
    """Found by its path, a frozen dataclass, and the same again from its params() in JSON."""
    return parameters(PENALTIES, penalty)


def neutral(penalty: Penalty) -> str:
    """With `neutral` parameters the very scores come back; without, some score is changed."""
    history, lengths = _padded(PAD)
    got = penalty.penalise(history, lengths, SCORES.clone())
    if not penalty.neutral:
        require(
            not torch.equal(got, SCORES),
            "it changes no score of these texts: check it with parameters that do, and let "
            "`neutral` be True for those that never can",
        )
        return f"changes {int((got != SCORES).sum())} of {SCORES.numel()} scores"
    for given in (penalty.penalise(history, lengths, SCORES), penalty(history, SCORES)):
        require(given is SCORES, "`neutral` is True, but the scores are not the object given")
    return "gives back the scores it was given"


def untouched(penalty: Penalty) -> str:
    """History and scores are not written into; shape and dtype of the scores stay."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        history, lengths = _padded(PAD)
        scores = SCORES.to(dtype)
        given = [x.clone() for x in (history, lengths, scores)]
        got = penalty.penalise(history, lengths, scores)
        for name, now, then in zip(
            ("history", "lengths", "scores"), (history, lengths, scores), given, strict=True
        ):
            require(torch.equal(now, then), f"penalise() wrote into its {name}: clone them first")
        require(
            (got.shape, got.dtype) == (scores.shape, dtype),
            f"of scores {tuple(scores.shape)}, {dtype}, it makes {tuple(got.shape)}, {got.dtype}",
        )
        require(not bool(got.isnan().any()), f"nan among scores of {dtype}")
    return "nothing given is written into"


def rows(penalty: Penalty) -> str:
    """Ragged rows together are each row alone, whatever stands before short ones."""
    for fill, before in ((PAD, 0), (1, 0), (3, 11)):
        got = penalty.penalise(*_padded(fill, before), SCORES)
        for r, text in enumerate(TEXTS):
            _same(
                got[[r]],
                _alone(penalty, text, r),
                f"a row of {len(text)} tokens in a batch, behind padding with id {fill}, is not "
                "that row alone: only the last `lengths[row]` places are history",
            )
    return f"rows of {', '.join(str(len(text)) for text in TEXTS)} tokens, each as if alone"


def prompt(penalty: Penalty) -> str:
    """Called with ids, generated tokens are history; the prompt on request; padding never."""
    new = 4
    for include in (False, True):
        mine = replace(penalty, include_prompt=include, pad_token_id=PAD)
        for begin in ([1, 2, 3, 1, 2], [20, 21]):
            prompts = torch.tensor([[PAD] * (5 - len(begin)) + begin] * len(TEXTS))
            calls = mine.clone()
            for t in range(new + 1):
                grown = [(text + [PAD] * new)[:t] for text in TEXTS]
                ids = torch.cat((prompts, torch.tensor(grown).long().view(len(TEXTS), t)), dim=1)
                got = calls(ids, SCORES)
                for r, text in enumerate(TEXTS):
                    _same(
                        got[[r]],
                        _alone(mine, (begin if include else []) + text[:t], r),
                        f"called with a prompt of {len(begin)} tokens and {min(t, len(text))} "
                        f"generated, include_prompt={include}: not penalise() of that history",
                    )
    return "generated tokens, the prompt on request, padding never"


def steps(penalty: Penalty) -> str:
    """Called once a token, what it remembers gives what the whole history gives."""
    text, calls = TEXTS[0] + TEXTS[1], replace(penalty, include_prompt=True)
    for n in range(1, len(text) + 1):
        _same(
            calls(torch.tensor([text[:n]]), SCORES[:1]),
            _alone(penalty, text[:n], 0),
            f"called token by token, after {n} of them it is not penalise() of the same history: "
            "see `begin`, `push` and `apply`",
        )
    return f"{len(text)} calls, each as if the first"


def drafts(penalty: Penalty) -> str:
    """Calls of assisted decoding: n ids, then n + 1 to n + k, then n and another draft."""
    text, n, k = TEXTS[0], 20, 4
    calls = replace(penalty, include_prompt=True)
    calls(torch.tensor([text[:9]]), SCORES[:1])
    for draft in ([30, 2, 30, 31], text[n : n + k], [3, 40, 3, 41]):
        for width in (n, *range(n + 1, n + k + 1)):
            ids = (text[:n] + draft)[:width]
            _same(
                calls(torch.tensor([ids]), SCORES[:1]),
                _alone(penalty, ids, 0),
                f"after {n + k} ids a call with {width} is not penalise() of these: a draft that "
                "was refused must be forgotten",
            )
    return f"widths {n} to {n + k} and back, three drafts"


PENALTY_CHECKS: Mapping[str, Callable[[Penalty], str]] = {
    "declared": declared,
    "neutral": neutral,
    "untouched": untouched,
    "rows": rows,
    "prompt": prompt,
    "steps": steps,
    "drafts": drafts,
}
