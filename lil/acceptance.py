"""How faithful a method is, step by step: which of full attention's tokens it would have chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attention import AttentionCache, Backend
from attention.errors import InvalidValue, check_int
from lil.rereading import reread
from lil.trace import Trace


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
        """Tokens of the text behind its first."""
        return len(self.chosen)

    @property
    def accepted(self) -> int:
        """How many of them the method chooses."""
        return int(self.chosen.sum())

    @property
    def agreed(self) -> int:
        """Tokens up to the first that the method does not choose."""
        return self.steps if self.chosen.all() else int(self.chosen.argmin())


def acceptance(
    model: Any,
    texts: Sequence[Trace],
    backend: Backend,
    *,
    batch_size: int = 32,
    engine: str = "auto",
    on_texts: Callable[[int], None] | None = None,
) -> list[Acceptance]:
    """Which tokens of full attention's texts a method would have chosen, one step each.

    The measure that decides how many drafts speculative decoding accepts (Leviathan et al., arXiv
    2211.17192), on greedy texts without penalties. Every step of the method reads the text as it
    is, so that one step's mistake counts once.

    Args:
        model: a causal language model of transformers, in evaluation mode.
        texts: full attention's traces, or others; only `prompt_ids` and `new_ids` count.
        backend: the method.
        batch_size: texts read together.
        engine: what decode queries read keys with, as `decode` takes it.
        on_texts: called after each batch with the number of texts in it.

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


def _read(model: Any, cache: AttentionCache, texts: Sequence[Trace]) -> Iterator[Acceptance]:
    """Of texts that are read together, the longest first."""
    prompts = [text.prompt_ids for text in texts]
    accepted: list[list[bool]] = [[] for _ in texts]
    keys = np.zeros(len(texts))
    steps = reread(model, cache, prompts, [text.new_ids[:-1] for text in texts])
    for at, (rows, scores) in enumerate(steps, start=1):
        likeliest: list[int] = scores.argmax(-1).tolist()
        for row, token in enumerate(likeliest):
            accepted[row].append(token == texts[row].new_ids[at])
        keys[: len(likeliest)] += rows.row_stats().keys_read.cpu().numpy()
    for chosen, read in zip(accepted, keys.tolist(), strict=True):
        yield Acceptance(np.array(chosen, dtype=bool), read)
