"""What every penalty needs to know of a row: which tokens are its history."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor
from transformers import LogitsProcessor

from attention.core import devices
from attention.errors import InvalidValue, check_flag, check_int
from attention.identity import named
from attention.spec import Aliases
from lil.compression.matching import EMPTY
from lil.generate_calls import CallSequence


class ScoreChange(NamedTuple):
    """`amounts` to be added to the scores at `tokens` where `wanted`; each (B, K).

    Where a row names a token more than once, the least result stays, on every device.
    """

    tokens: Tensor
    amounts: Tensor
    wanted: Tensor


Self = TypeVar("Self", bound="Penalty")


class Calls(CallSequence):
    """The calls a penalty has had: the ids of the last, and the method's memory of them."""

    def __init__(self, mask: Tensor | None = None) -> None:
        super().__init__()
        self.mask = mask
        self.memory: Any = None
        self.vocabulary = 0  # of the last call's scores: an assistant may have another one

    def live(self, ids: Tensor, pad_token_id: int | None, start: int) -> Tensor | None:
        """Which of `ids[:, start:]` are history rather than padding (B, n - start); None: all."""
        live = None if pad_token_id is None else ids[:, start:] != pad_token_id
        if self.mask is None or start >= self.prompt:
            return live
        rows, beams = self.mask.shape[0], ids.shape[0] // self.mask.shape[0]
        if (rows * beams, self.mask.shape[1]) != (ids.shape[0], self.prompt):
            shape = f"(B, {self.prompt}), the prompts' shape, B a divisor of {ids.shape[0]}"
            raise InvalidValue("attention_mask", tuple(self.mask.shape), shape)
        real = torch.ones_like(ids, dtype=torch.bool)
        real[:, : self.prompt] = self.mask.to(ids.device).repeat_interleave(beams, dim=0)
        return real[:, start:] if live is None else live & real[:, start:]


@dataclass(frozen=True, kw_only=True)
class Penalty(LogitsProcessor, ABC):
    """A transformers `LogitsProcessor` that acts on each row's history.

    A subclass is a frozen dataclass of parameters that names itself and defines `penalise`, a
    function of history and scores alone; `generate()` and `lil.decode` need nothing else.

    The first call's width is the prompt's, and a later call whose ids begin with that prompt is the
    same generation, in beams, assisted decoding and prompt lookup, too. Other ids start anew, as
    does every `clone`; call `forget` where the next prompt is the last output.

    It never writes into the scores; neutral parameters give back the very object. Penalties are
    computed in float32 (float64 for float64 scores) and the result has the scores' type.

    Args:
        include_prompt: whether the prompt is history too, or generated tokens alone.
        pad_token_id: tokens with this id are padding wherever they stand, never history. For a
            padding id that is also a token of the text use `with_mask`.
    """

    include_prompt: bool = False
    pad_token_id: int | None = None
    _calls: Calls = field(default_factory=Calls, init=False, repr=False, compare=False)
    _in_place: bool = field(default=False, init=False, repr=False, compare=False)

    name: ClassVar[str]
    #: Raised where the same parameters give another result than before.
    version: ClassVar[int] = 1
    #: Parameters that say the same, in groups: one that comes later takes the others' place.
    aliases: ClassVar[Aliases] = ()
    #: Whether `with_tokens` makes another of it.
    reads_tokens: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_flag("include_prompt", self.include_prompt)
        if self.pad_token_id is not None:
            self._resolve(pad_token_id=check_int("pad_token_id", self.pad_token_id, 0))

    def _resolve(self, **values: object) -> None:
        """Set parameters while the object is made."""
        for key, value in values.items():
            object.__setattr__(self, key, value)

    @property
    def neutral(self) -> bool:
        """Whether these parameters change no scores."""
        return False

    def fixed_shape(self, _device: torch.device, /) -> bool:
        """Whether a graph can hold `push` and `apply`: its memory never grows, on that device.

        The memory is a tensor (B, ...) or an `LZRows`.
        """
        return False

    @abstractmethod
    def penalise(self, history: Tensor, lengths: Tensor, scores: Tensor) -> Tensor:
        """New scores (B, V); depends on nothing else and writes into none of them.

        Args:
            history: (B, n), tokens right-aligned; places before short rows mean nothing.
            lengths: (B,), tokens of each row's history.
            scores: (B, V), raw scores of the next token.
        """

    def params(self) -> dict[str, object]:
        """The parameters, resolved and JSON-able."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def identity(self) -> dict[str, Any]:
        """Its part of a run's id: name, version above 1, and every parameter."""
        return named(self, self.params())

    def clone(self: Self) -> Self:
        """An independent penalty with the same parameters and no history."""
        return replace(self)

    def with_mask(self: Self, attention_mask: Tensor) -> Self:
        """A clone for padded prompts; `attention_mask` (B, prompt width) is 0 at padding."""
        if attention_mask.ndim != 2:
            raise InvalidValue("attention_mask", tuple(attention_mask.shape), "a shape (B, width)")
        twin = replace(self)
        object.__setattr__(twin, "_calls", Calls(attention_mask.bool()))
        object.__setattr__(twin, "_in_place", self._in_place)
        return twin

    def with_tokens(self: Self, _table: Sequence[bytes], /) -> Self:
        """The penalty of a model whose ids have these bytes; most are the same for any."""
        return self

    def in_place(self: Self) -> Self:
        """A clone that writes into its scores, which saves a copy of (B, V).

        Safe in `generate()`, unless `output_logits` asks for the raw scores as well.
        """
        twin = replace(self)
        object.__setattr__(twin, "_calls", Calls(self._calls.mask))
        object.__setattr__(twin, "_in_place", True)
        return twin

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """New scores (B, V) from raw ones behind `input_ids` (B, n), prompts included."""
        if self.neutral:
            return scores
        if input_ids.ndim != 2 or scores.ndim != 2 or len(input_ids) != len(scores):
            shapes = f"{tuple(input_ids.shape)} and {tuple(scores.shape)}"
            raise InvalidValue("input_ids and scores", shapes, "(B, n) and (B, V)")
        calls = self._calls
        known = calls.follow(input_ids)
        if not known or calls.memory is None or calls.vocabulary != scores.shape[1]:
            start = 0 if self.include_prompt else calls.prompt
            live = calls.live(input_ids, self.pad_token_id, start)
            calls.vocabulary = scores.shape[1]
            calls.memory = self.begin(right_aligned(input_ids[:, start:], live), scores.shape[1])
            return self.apply(calls.memory, scores)
        live = calls.live(input_ids, self.pad_token_id, known)
        for i, newest in enumerate(input_ids[:, known:].unbind(dim=1)):
            calls.memory = self.push(calls.memory, newest, None if live is None else live[:, i])
        return self.apply(calls.memory, scores)

    def forget(self) -> None:
        """The next call starts anew, even where its prompt begins with the last one's."""
        self._calls.forget()

    def begin(self, history: Tensor, _vocabulary: int, /) -> Any:
        """What to remember of `history` (B, n), right-aligned with `EMPTY` before short rows."""
        return history

    def company(self, _device: torch.device, /) -> Hashable:
        """Equal for penalties whose rows one memory can hold; of most, those that are equal."""
        return self

    def begin_each(self, _penalties: Sequence[Penalty], history: Tensor, vocabulary: int, /) -> Any:
        """As `begin`, of rows that have penalties (B,) of this one's company."""
        return self.begin(history, vocabulary)

    def push(self, memory: Any, newest: Tensor, live: Tensor | None) -> Any:
        """The memory after one more token `newest` (B,) in the rows that are `live`, None: all."""
        history = torch.cat((memory, newest[:, None]), dim=1)
        if live is None:
            return history
        mask = torch.cat((torch.ones_like(memory, dtype=torch.bool), live[:, None]), dim=1)
        return right_aligned(history, mask)

    def apply(self, memory: Any, scores: Tensor) -> Tensor:
        """New scores (B, V)."""
        return self.penalise(memory, (memory != EMPTY).sum(dim=1), scores)

    def _changed(self, scores: Tensor, *changes: ScoreChange) -> Tensor:
        """`scores` (B, V) with what each change adds; where two name a place, the later counts.

        Nothing waits for the device: shapes do not depend on what is wanted.
        """
        writes = []
        for tokens, amounts, wanted in changes:
            if not tokens.shape[1]:
                continue
            # What is not wanted goes where the row's first change goes, and never decides there.
            first = wanted.to(torch.uint8).argmax(dim=1, keepdim=True)
            any_wanted = wanted.gather(1, first)
            at = torch.where(wanted, tokens, torch.where(any_wanted, tokens.gather(1, first), 0))
            old = scores.gather(1, at)  # all are read before anything is written
            new = torch.where(wanted, old.to(amounts.dtype) + amounts, torch.inf).to(scores.dtype)
            writes.append((at, new, any_wanted))
        if not writes:
            return scores
        scores = self._writable(scores)
        for at, new, any_wanted in writes:
            # A row without any keeps the score at place 0. Less than half the time that
            # `include_self=False` takes.
            first_score = scores[:, :1]
            scores.scatter_(1, at, torch.where(any_wanted, torch.inf, first_score).expand(at.shape))
            scores.scatter_reduce_(1, at, new, "amin")
        return scores

    def _lowered(self, scores: Tensor, *changes: tuple[Tensor, Tensor]) -> Tensor:
        """`scores` with amounts added at tokens, (B, K) each, none above 0; the least result stays.

        A third of the work of `_changed`: an amount of 0 changes nothing.
        """
        writes = []
        for tokens, amounts in changes:
            at = tokens.clamp(0, scores.shape[1] - 1)
            writes.append((at, (scores.gather(1, at) + amounts).to(scores.dtype)))
        scores = self._writable(scores)
        for at, new in writes:
            scores.scatter_reduce_(1, at, new, "amin")
        return scores

    def _writable(self, scores: Tensor) -> Tensor:
        """`scores`, or a copy of them."""
        return scores if self._in_place else scores.clone(memory_format=torch.contiguous_format)


class StatefulPenalty(Penalty):
    """A penalty that remembers more than the tokens, so that a step need not read them all.

    After any pushes the scores are those of the same history at once.
    """

    def penalise(self, history: Tensor, lengths: Tensor, scores: Tensor) -> Tensor:
        if self.neutral:
            return scores
        return self.apply(self.begin(emptied(history, lengths), scores.shape[1]), scores)

    @abstractmethod
    def begin(self, history: Tensor, vocabulary: int, /) -> Any: ...

    def push(self, memory: Any, newest: Tensor, live: Tensor | None) -> Any:
        memory.push(newest, live)
        return memory

    @abstractmethod
    def apply(self, memory: Any, scores: Tensor) -> Tensor: ...


def padded(histories: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Histories (B, n), right-aligned with `EMPTY` before short ones."""
    longest = max(map(len, histories))
    rows = [[EMPTY] * (longest - len(history)) + list(history) for history in histories]
    return devices.put(rows, device, torch.int64)


def emptied(history: Tensor, lengths: Tensor) -> Tensor:
    """`history` (B, n), right-aligned, with `EMPTY` before rows of these lengths (B,)."""
    n = history.shape[1]
    place = torch.arange(n, device=history.device)
    return history.masked_fill(place < n - lengths[:, None], EMPTY)


def token_ids(field: str, value: object) -> tuple[int, ...]:
    """A list of token ids as a parameter."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InvalidValue(field, value, "a list of whole numbers, token ids")
    return tuple(check_int(field, token) for token in value)


def right_aligned(ids: Tensor, live: Tensor | None) -> Tensor:
    """The live tokens of each row in order, at the right, with `EMPTY` before them."""
    if live is None:
        return ids
    order = live.to(torch.int8).argsort(dim=1, stable=True)
    return ids.masked_fill(~live, EMPTY).gather(1, order)


def working_dtype(scores: Tensor) -> torch.dtype:
    """The type to compute in: float32, or the scores' own if that is wider."""
    return torch.promote_types(scores.dtype, torch.float32)
