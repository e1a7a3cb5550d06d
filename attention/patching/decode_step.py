"""What every decode step has that is not the model itself, and how one is compared with it."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from attention.errors import InvalidValue
from attention.patching.cache import AttentionCache
from attention.patching.operator import CALL, Call

#: What such a step may differ by from an eager one, of the largest score: roundings of sums.
#: Norms of many models are in float32 whatever the model is in.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3, torch.bfloat16: 0.06, torch.float16: 0.02}


class NotCompiled(Exception):  # noqa: N818 - it names a state that callers go on from, not a fault
    """A step that could not be compiled, with the reason; the model runs as it is."""


class DecodeStep(ABC):
    """A model's decode step, attention being one operator in it: the same for every method.

    Rows attend through the cache that a call is given, so one step serves all caches of all blocks
    on its model. It sees changes of weights in place; hooks that are added later it does not call.

    Attributes:
        seconds: what making it took; 0 where it was kept from earlier.
        states: names of modules whose outputs it gives beside the scores.
        how: what was done to make it, in words.
    """

    seconds: float
    states: tuple[str, ...]
    how: ClassVar[str]

    def __call__(self, cache: AttentionCache, ids: Tensor, positions: Tensor) -> Tensor:
        """Scores (B, V) of the tokens behind `ids`, as a forward of the model gives them.

        Args:
            cache: of an open block on the model, its prompts read.
            ids: each row's newest token, (B, 1).
            positions: theirs, (B, 1).

        Raises:
            InvalidValue: a cache of a closed block, or what `AttentionCache.attend` refuses.
            NotCompiled: it cannot be made for so many rows; the cache is as it was.
        """
        return self.read(cache, ids, positions)[0]

    def read(
        self, cache: AttentionCache, ids: Tensor, positions: Tensor
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The same scores, and what the modules of `states` put out, (B, hidden size) each.

        Raises:
            InvalidValue: as a call.
            NotCompiled: as a call.
        """
        if not cache.session.open:
            closed = f"a cache of a closed {cache.backend.name} block"
            raise InvalidValue("cache", closed, "one of an open block")
        cache.expect(1)
        call = Call(cache, positions)
        before = CALL.set(call)
        try:
            found = self.run(ids.contiguous(), positions.contiguous())
        finally:
            CALL.reset(before)
        if call.error is not None:
            raise call.error
        return found[0], found[1:]

    @abstractmethod
    def run(self, ids: Tensor, positions: Tensor) -> Sequence[Tensor]:
        """Scores and states, attending through the cache in `CALL`; anything where that failed."""


def probe(step: DecodeStep, model: PreTrainedModel, cache: AttentionCache) -> None:
    """Compare a step with the model itself on a few tokens.

    Args:
        step: of the model.
        cache: of an open block on it; it stays as it is.

    Raises:
        NotCompiled: scores differ by more than rounding.
    """
    vocabulary = model.get_input_embeddings().num_embeddings
    ids = (torch.arange(1, 9, device=model.device).view(2, 4) * 7) % vocabulary
    with torch.inference_mode():
        eager = AttentionCache(cache.session.full_session)
        model(input_ids=ids[:, :3], past_key_values=eager, use_cache=True, logits_to_keep=1)
        twin, newest, at = eager.clone(), ids[:, 3:], eager.seen[:, None]
        given = {"input_ids": newest, "position_ids": at, "past_key_values": eager}
        wanted = model(**given, use_cache=True, logits_to_keep=1).logits[:, -1].double()
        scores = step(twin, newest, at).double()
    apart = float((scores - wanted).abs().max() / wanted.abs().max())
    if not apart <= TOLERANCE[model.dtype]:
        raise NotCompiled(f"its scores differ from the model's by {apart:.2g} of the largest")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what compilers print beside their errors, which are raised."""
    level = logging.getLogger("torch").level
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.getLogger("torch").setLevel(logging.ERROR)
        try:
            yield
        finally:
            logging.getLogger("torch").setLevel(level)
