"""What the caller asked for, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from attention.errors import InvalidValue

Item = TypeVar("Item")


@dataclass(frozen=True)
class Request:
    """One sequence to generate.

    Args:
        index: place in the caller's list.
        prompt_ids: token ids of the prompt.
        forced: known first generated tokens.
        signals: what readers made of them.
        cap: most generated tokens.
        item_id, sample_index: with the seed, what the row's random stream is made of.
    """

    index: int
    prompt_ids: tuple[int, ...]
    forced: tuple[int, ...]
    signals: Mapping[str, tuple[tuple[int, float], ...]]
    cap: int
    item_id: str
    sample_index: int


def make_requests(
    tokenizer: Any,
    prompts: Sequence[str | Sequence[int]],
    *,
    vocabulary: int,
    max_new_tokens: int | Sequence[int],
    item_ids: Sequence[str] | None,
    sample_indices: Sequence[int] | None,
    forced: Sequence[Sequence[int]] | None,
    forced_signals: Sequence[Mapping[str, tuple[tuple[int, float], ...]]] | None,
    exact_until: float,
) -> list[Request]:
    """One request a prompt; text is tokenized as the tokenizer does by default.

    Raises:
        InvalidValue: a list of another length than `prompts`, an empty prompt, an id outside the
            vocabulary, a cap below 1, or forced tokens beyond what the backend computes exactly.
    """
    count = len(prompts)
    caps = [max_new_tokens] * count if isinstance(max_new_tokens, int) else max_new_tokens
    _same_length("max_new_tokens", caps, count)
    names = _same_length("item_ids", item_ids or [str(i) for i in range(count)], count)
    samples = _same_length("sample_indices", sample_indices or [0] * count, count)
    given = _same_length("forced", forced or [()] * count, count)
    nothing: Mapping[str, tuple[tuple[int, float], ...]] = {}
    signals = _same_length("forced_signals", forced_signals or [nothing] * count, count)
    requests = []
    for index, prompt in enumerate(prompts):
        ids = tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        request = Request(
            index=index,
            prompt_ids=tuple(int(i) for i in ids),
            forced=tuple(int(i) for i in given[index]),
            signals=signals[index],
            cap=caps[index],
            item_id=names[index],
            sample_index=samples[index],
        )
        _check(request, vocabulary, exact_until)
        requests.append(request)
    return requests


def _check(request: Request, vocabulary: int, exact_until: float) -> None:
    where = f"[{request.index}]"
    if not request.prompt_ids:
        raise InvalidValue(f"prompts{where}", "", "at least one token")
    for field, ids in (("prompts", request.prompt_ids), ("forced", request.forced)):
        wrong = next((i for i in ids if not 0 <= i < vocabulary), None)
        if wrong is not None:
            raise InvalidValue(f"{field}{where}", wrong, f"token ids from 0 to {vocabulary - 1}")
    if request.cap < 1:
        raise InvalidValue(f"max_new_tokens{where}", request.cap, "at least 1")
    longest = len(request.prompt_ids) + len(request.forced)
    if request.forced and longest > exact_until:
        allowed = (
            f"at most {exact_until} tokens with the prompt: beyond that this backend no longer "
            "equals full attention, and a prefix read at once is not a prefix decoded"
        )
        raise InvalidValue(f"forced{where}", f"{longest} tokens", allowed)


def _same_length(field: str, values: Sequence[Item], count: int) -> Sequence[Item]:
    if len(values) != count:
        raise InvalidValue(field, f"{len(values)} values", f"one a prompt: {count}")
    return values
