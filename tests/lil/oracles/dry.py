"""Oracle of DRY: a token that would go on repeating earlier text loses logits."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def repeated(history: Sequence[int], end: int, breakers: Collection[int]) -> int:
    """The longest k with the k tokens before index `end` equal to the last k of the history.

    None of these tokens may be a breaker. The two stretches may overlap.
    """
    tokens = list(history)
    longest = 0
    for k in range(1, end + 1):
        earlier, last = tokens[end - k : end], tokens[len(tokens) - k :]
        if earlier == last and not any(token in breakers for token in last):
            longest = k
    return longest


def penalties(
    history: Sequence[int],
    *,
    multiplier: float = 0.8,
    base: float = 1.75,
    allowed_length: int = 2,
    sequence_breakers: Collection[int] = (),
    window: int | None = None,
    longest: int | None = None,
) -> dict[int, float]:
    """What is taken off the logits: multiplier * base ** (length - allowed_length), by token.

    Args:
        history: tokens the penalty sees, oldest first.
        multiplier, base, allowed_length: DRY's constants; shorter matches cost nothing.
        sequence_breakers: tokens over which no match reaches, and which are never penalised.
        window: how many of the last tokens count; None: all.
        longest: longer matches count as this long; None: as they are.
    """
    tokens = list(history) if window is None else list(history)[max(len(history) - window, 0) :]
    losses: dict[int, float] = {}
    for i in range(1, len(tokens)):
        length = repeated(tokens, i, sequence_breakers)
        if longest is not None:
            length = min(length, longest)
        if length >= max(allowed_length, 1) and tokens[i] not in sequence_breakers:
            penalty = multiplier * base ** (length - allowed_length)
            losses[tokens[i]] = max(losses.get(tokens[i], 0.0), penalty)
    return losses


def penalise(logits: Sequence[float], history: Sequence[int], **params: object) -> list[float]:
    """New logits (V,); the parameters are those of `penalties`."""
    off = penalties(history, **params)  # type: ignore[arg-type]
    return [logit - off.get(token, 0.0) for token, logit in enumerate(logits)]
