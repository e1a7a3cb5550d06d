"""What every decode step has that is not the model itself, and how one is compared with it."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from attention.errors import InvalidValue
from attention.patching.attention_op import CALL, Call
from attention.patching.cache import AttentionCache

#: What such a step may differ by from an eager one, of the largest score: roundings of sums.
#: Norms of many models are in float32 whatever the model is in.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3, torch.bfloat16: 0.06, torch.float16: 0.02}
#: Rows that a step is tried on where two differ: in a model of 8-bit layers a last bit may decide
#: between two whole numbers in some of them.
ROWS = 8
#: These may differ by so many times what the model's own scores do where last bits change.
TIMES_OWN = 2
#: What follows the scores (R, V) of a step in its graph; it is also given the tokens read, (R, 1),
#: and which rows are live, (R,) int32, and gives tensors of R rows. Where live is 0 it must change
#: nothing. It holds what it reads, at fixed addresses, and is captured anew for any other object.
Then = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]


class NotCompiled(Exception):  # noqa: N818 - it names a state that callers go on from, not a fault
    """A step that could not be compiled, with the reason; the model runs as it is."""

    @classmethod
    def because(cls, error: Exception) -> NotCompiled:
        """The first line of what torch or a compiler raised."""
        lines = str(error).strip().splitlines() or [""]
        return cls(f"{type(error).__name__}: {lines[0][:200]}")


class DecodeStep(ABC):
    """A model's decode step, attention being one operator in it: for every method and cache.

    It sees changes of weights in place; hooks that are added later it does not call.

    Attributes:
        seconds: what making it took; 0 where it was kept from earlier.
        states: names of modules whose outputs it returns after the scores.
        how: what was done to make it, in words.
    """

    seconds: float
    states: tuple[str, ...]
    how: ClassVar[str]

    def __call__(self, cache: AttentionCache, ids: Tensor, positions: Tensor) -> Tensor:
        """Scores (B, V) of the tokens behind `ids`, as a forward of the model; see `followed`."""
        return self.followed(cache, ids, positions)[0][0]

    def follows(self, _cache: AttentionCache) -> bool:
        """Whether a step of this cache is one graph, which can hold what follows."""
        return False

    def followed(
        self, cache: AttentionCache, ids: Tensor, positions: Tensor, then: Then | None = None
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """What `then` makes of the scores, or they alone; outputs (B, hidden size) of `states`.

        Args:
            cache: of an open block on the model, its prompts read.
            ids, positions: each row's newest token and its position, (B, 1) each.
            then: None where the step does not follow this cache.

        Raises:
            NotCompiled: it cannot be made for so many rows; the cache is as it was.
        """
        if not cache.session.open:
            closed = f"a cache of a closed {cache.backend.name} block"
            raise InvalidValue("cache", closed, "one of an open block")
        cache.expect(1)
        call = Call(cache, positions)
        before = CALL.set(call)
        try:
            outputs = self.run(ids.contiguous(), positions.contiguous(), then)
        except RuntimeError as error:
            # A signal that comes while the step is in Python leaves it as an error of C++.
            name, _, code = str(error).partition("\n")[0].partition(": ")
            if name == "KeyboardInterrupt":
                raise KeyboardInterrupt from error
            if name == "SystemExit":
                raise SystemExit(int(code) if code.isdigit() else 1) from error
            raise
        finally:
            CALL.reset(before)
        if call.error is not None:
            raise call.error
        edge = len(outputs) - len(self.states)
        return outputs[:edge], outputs[edge:]

    @abstractmethod
    def run(self, ids: Tensor, positions: Tensor, then: Then | None) -> Sequence[Tensor]:
        """Scores, or what follows them, and states, through the cache in `CALL`."""


def probe(step: DecodeStep, model: PreTrainedModel, cache: AttentionCache) -> None:
    """Compare a step with the model itself on a few tokens."""
    tolerance = TOLERANCE[model.dtype]
    for rows in (2, ROWS):
        ids = torch.arange(1, 1 + 4 * rows, device=model.device).view(rows, 4) * 7
        ids %= model.get_input_embeddings().num_embeddings
        wanted, read = _eager(model, cache, ids)
        with torch.inference_mode():
            scores = step(read, ids[:, 3:], read.seen[:, None]).double()
        differences = _apart(scores, wanted)
        worst, half = float(differences.max()), float(differences.median())
        if worst <= tolerance:
            return
    # A step that computes something else does so in every row.
    if half <= tolerance:
        nudged = (_nudged(model, cache, ids, seed) for seed in (0, 1))
        own = max(float(_apart(scores_of_nudged, wanted).max()) for scores_of_nudged in nudged)
        if worst <= max(tolerance, TIMES_OWN * own):
            return
    raise NotCompiled(
        f"its scores differ from the model's by {worst:.2g} of the largest, in half of "
        f"{ROWS} rows by {half:.2g} or more"
    )


@torch.inference_mode()
def _eager(
    model: PreTrainedModel, cache: AttentionCache, ids: Tensor
) -> tuple[Tensor, AttentionCache]:
    """Scores behind the last of some tokens, (B, V), and a cache of the others."""
    eager = AttentionCache(cache.session.full_session)
    model(input_ids=ids[:, :3], past_key_values=eager, use_cache=True, logits_to_keep=1)
    read = eager.clone()
    inputs = {"input_ids": ids[:, 3:], "position_ids": eager.seen[:, None]}
    scores = model(**inputs, past_key_values=eager, use_cache=True, logits_to_keep=1).logits[:, -1]
    return scores.double(), read


def _apart(scores: Tensor, wanted: Tensor) -> Tensor:
    """The largest difference of each row, of the row's largest score, (B,)."""
    return (scores - wanted).abs().amax(-1) / wanted.abs().amax(-1)


def _nudged(model: PreTrainedModel, cache: AttentionCache, ids: Tensor, seed: int) -> Tensor:
    """Scores of the model itself with the last bits of its embeddings changed, (B, V)."""
    dice = torch.Generator().manual_seed(seed)

    def nudge(_module: object, _args: object, embedded: Tensor) -> Tensor:
        # Norms in float32 see no finer changes.
        step = 2 * max(torch.finfo(x).eps for x in (embedded.dtype, torch.float32))
        moved = torch.rand(embedded.shape, generator=dice).to(embedded.device) * 2 - 1
        return embedded * (1 + step * moved.to(embedded.dtype))

    hook = model.get_input_embeddings().register_forward_hook(nudge)
    try:
        return _eager(model, cache, ids)[0]
    finally:
        hook.remove()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide what compilers print; their errors are raised."""
    level = logging.getLogger("torch").level
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.getLogger("torch").setLevel(logging.ERROR)
        try:
            yield
        finally:
            logging.getLogger("torch").setLevel(level)
