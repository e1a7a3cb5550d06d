"""How faithful a method is, step by step: which of full attention's tokens it would have chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attention import AttentionCache, Backend
from attention.core import devices
from attention.errors import InvalidValue, check_int
from lil.decoding.sampling import NotFiniteError


class Text(Protocol):
    """A `lil.Trace`, or anything else with a prompt's and its generated token ids."""

    @property
    def prompt_ids(self) -> Sequence[int]: ...

    @property
    def new_ids(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class Acceptance:
    """Which tokens of one text a method chooses after the text's own tokens.

    Attributes:
        chosen: whether each generated token is the likeliest, (tokens - 1,); the first token
            follows from the prompt alone, which every method reads in full.
        keys_read: by these steps, summed over layers and KV heads.
    """

    chosen: NDArray[np.bool_]
    keys_read: float

    @property
    def steps(self) -> int:
        """How many tokens were asked for."""
        return len(self.chosen)

    @property
    def accepted(self) -> int:
        """How many of them it chooses."""
        return int(self.chosen.sum())

    @property
    def agreed(self) -> int:
        """Tokens up to the first that it does not choose: where its own text would part."""
        return self.steps if self.chosen.all() else int(self.chosen.argmin())


def acceptance(
    model: Any,
    texts: Sequence[Text],
    backend: Backend,
    *,
    batch_size: int = 32,
    engine: str = "auto",
    on_texts: Callable[[int], None] | None = None,
) -> list[Acceptance]:
    """Which tokens of full attention's texts a method would have chosen, one step each.

    The measure that decides how many drafts speculative decoding accepts (Leviathan et al., arXiv
    2211.17192), on greedy texts without penalties. Every step of the method reads the text as it
    is, so that one step's mistake counts once. Nothing is generated; a token costs a decode step.

    Args:
        model: a causal language model of transformers, in evaluation mode.
        texts: full attention's traces, or others.
        backend: the method.
        batch_size: texts read together.
        engine: what decode queries read keys with, as `decode` takes it.
        on_texts: called after each batch with the number of texts in it.

    Returns:
        One for each text, in their order.

    Raises:
        InvalidValue: an empty prompt, or a backend that does not fit the model.
        FloatingPointError: scores are not finite.
    """
    check_int("batch_size", batch_size, least=1)
    for at, text in enumerate(texts):
        if not text.prompt_ids:
            raise InvalidValue(f"texts[{at}].prompt_ids", text.prompt_ids, "one token or more")
    results: dict[int, Acceptance] = {}
    # Texts of one length end together, so that no row is carried on behind its end for long.
    order = sorted(
        (at for at, text in enumerate(texts) if len(text.new_ids) > 1),
        key=lambda at: -len(texts[at].new_ids),
    )
    with backend.on(model, engine) as cache:
        for begin in range(0, len(order), batch_size):
            those = order[begin : begin + batch_size]
            results.update(
                zip(those, _read(model, cache, [texts[at] for at in those]), strict=True)
            )
            if on_texts is not None:
                on_texts(len(those))
    nothing = Acceptance(np.zeros(0, dtype=bool), 0.0)
    return [results.get(at, nothing) for at in range(len(texts))]


@torch.inference_mode()
def _read(model: Any, cache: AttentionCache, texts: Sequence[Text]) -> Iterator[Acceptance]:
    """Of texts that are read together, the longest first."""
    device, rows = model.device, len(texts)
    lengths = np.array([len(text.new_ids) for text in texts])
    new = np.zeros((rows, lengths[0]), dtype=np.int64)
    for row, text in enumerate(texts):
        new[row, : lengths[row]] = text.new_ids
    own, same = _prompts(model, cache, texts), np.zeros(new.shape, dtype=bool)
    keys = np.zeros(rows)
    for at in range(lengths[0] - 1):
        going = int((lengths > at + 1).sum())
        if going < own.batch_size:
            own.select_rows(range(going))
        column = devices.put(new[:going, at], device, torch.int64)[:, None]
        places = own.seen[:, None].to(device)
        scores = _scores(model, own, input_ids=column, position_ids=places)
        same[:going, at + 1] = scores.argmax(-1).cpu().numpy() == new[:going, at + 1]
        keys[:going] += own.row_stats().keys_read.cpu().numpy()
    for row, length in enumerate(lengths):
        yield Acceptance(same[row, 1:length], float(keys[row]))


def _prompts(model: Any, cache: AttentionCache, texts: Sequence[Text]) -> AttentionCache:
    """A cache that has read the prompts, padded on the left."""
    width = max(len(text.prompt_ids) for text in texts)
    ids = np.zeros((len(texts), width), dtype=np.int64)  # padding is masked, so any id serves
    mask = np.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, width - len(text.prompt_ids) :] = text.prompt_ids
        mask[row, width - len(text.prompt_ids) :] = 1
    own = cache.new(prompts=[len(text.prompt_ids) for text in texts])
    places = (mask.cumsum(1) - 1).clip(min=0)
    inputs = (devices.put(x, model.device, torch.int64) for x in (ids, mask, places))
    names = ("input_ids", "attention_mask", "position_ids")
    _scores(model, own, **dict(zip(names, inputs, strict=True)))
    return own


def _scores(model: Any, cache: AttentionCache, **inputs: Tensor) -> Tensor:
    """Of the next token of each row, (B, V)."""
    output = model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
    scores: Tensor = output.logits[:, -1]
    if not scores.amax(-1).isfinite().all():
        raise NotFiniteError
    return scores
