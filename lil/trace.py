"""The record of one decoded sequence: its text, why it ended, and what it cost at every check."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

from attention.errors import InvalidValue
from lil.compression.curves import Point

#: What a detector made of the model's states: (generated tokens, number), ascending.
Signal: TypeAlias = tuple[tuple[int, float], ...]


class Cost(NamedTuple):
    """Cost up to a number of generated tokens.

    `keys_read` is cumulative over steps, layers and KV heads, page bounds and representatives in
    key equivalents; `cache_bytes` is held at that moment; `seconds` is cumulative decode time, None
    where the row decoded nothing of its own to measure it by. `read_sum` and `dense_read_sum` are
    cumulative over steps, each step's mean over sparsified (dense) layers and query heads: divided
    by the tokens - 1 steps they give the means of a cut trace; None without dense layers.
    """

    tokens: int
    keys_read: float
    cache_bytes: float
    seconds: float | None
    read_sum: float
    dense_read_sum: float | None


@dataclass(frozen=True)
class Trace:
    """One generation, JSON-able through `to_dict`.

    Units: tokens, bytes, seconds. Missing is None.

    Args:
        prompt_ids: the prompt's token ids.
        new_ids: the generated ids, `eos` included.
        prompt_bytes: the prompt's text as the detectors were given it.
        pieces: bytes of each generated token; joined, they are the decoded text.
        finish: "eos", "length", or the name of the detector that ended it.
        evidence: that detector's evidence, else None.
        curve: compression curve of the output alone (without `eos`), every `check_every` tokens and
            at the end.
        checks: costs every `check_every` tokens and at the end.
        keys_kept_max: keys held after a step, most over steps, sparsified layers and heads.
        keys_read_max, keys_read_mean: keys read by a decode query over sparsified layers and query
            heads, most and mean over steps; None where no step was made.
        dense_layer_keys_read_mean: the same mean over the backend's dense layers; None without.
        cache_bytes_peak: most bytes of keys, values and method state held after a step.
        prefill_sec: this row's share of the forward passes that read its prompt, by tokens.
        decode_sec: this row's share of the decode steps (a step's seconds / rows active).
        dropped: ids that were decoded and chopped off again; costs are those of the whole run.
        action: what was done when a detector fired and the generation went on: the action's `name`
            and parameters, `detector` and its `evidence`, `step` (tokens when it fired), `kept` and
            `dropped` of them, and `cue_tokens` given next; else None.
        signals: by name, what detectors that read hidden states made of them: (generated tokens,
            number).
        reused_tokens: how many of `new_ids` were given rather than decoded. Keys, bytes and seconds
            are charged as if they had been decoded: n keys in every layer and KV head for the step
            that sees n tokens, bytes in proportion to n, seconds at the row's own mean per step.
        positions: tokens the model was made for, prompt included; None where its config names no
            number.
    """

    prompt_ids: tuple[int, ...]
    new_ids: tuple[int, ...]
    prompt_bytes: bytes
    pieces: tuple[bytes, ...]
    finish: str
    evidence: Mapping[str, object] | None
    curve: tuple[Point, ...]
    checks: tuple[Cost, ...]
    keys_kept_max: int
    keys_read_max: int | None
    keys_read_mean: float | None
    dense_layer_keys_read_mean: float | None
    cache_bytes_peak: int
    prefill_sec: float
    decode_sec: float | None
    reused_tokens: int = 0
    dropped: tuple[int, ...] = ()
    action: Mapping[str, Any] | None = None
    signals: Mapping[str, Signal] = field(default_factory=dict)
    positions: int | None = None

    @property
    def at_positions(self) -> bool:
        """Whether it was cut where the model's positions end, or went beyond them."""
        if self.positions is None:
            return False
        left = self.positions - len(self.prompt_ids) - self.decoded_tokens
        return left < 0 or (left == 0 and self.finish == "length")

    @property
    def tokens(self) -> int:
        """Generated tokens, `eos` counted."""
        return len(self.new_ids)

    @property
    def decoded_tokens(self) -> int:
        """Generated tokens, those that were dropped again among them."""
        return len(self.new_ids) + len(self.dropped)

    @property
    def text_pieces(self) -> tuple[bytes, ...]:
        """Bytes of the generated tokens that are text, i.e. without a final `eos`."""
        return self.pieces[:-1] if self.finish == "eos" else self.pieces

    @property
    def text(self) -> str:
        """The generated text, without a final `eos`; bytes that are not UTF-8 show as U+FFFD."""
        return b"".join(self.text_pieces).decode(errors="replace")

    def cost_at(self, tokens: int) -> Cost:
        """Cost of the first `tokens` generated tokens: exact at a check, else on a straight line.

        Raises:
            InvalidValue: `tokens` below 0 or above the trace's length, or a trace without costs.
        """
        if not 0 <= tokens <= self.tokens:
            raise InvalidValue("tokens", tokens, f"0 to {self.tokens}, the trace's length")
        right = bisect.bisect_left(self.checks, tokens, key=lambda check: check.tokens)
        if right == len(self.checks):
            raise InvalidValue("tokens", tokens, "a trace whose costs were recorded up to there")
        after = self.checks[right]
        if tokens == after.tokens:
            return after
        origin = Cost(0, 0.0, after.cache_bytes, 0.0, 0.0, 0.0)
        before = self.checks[right - 1] if right else origin
        share = (tokens - before.tokens) / (after.tokens - before.tokens)
        between = (
            None if start is None or end is None else start + (end - start) * share
            for start, end in zip(before[1:], after[1:], strict=True)
        )
        return Cost(tokens, *between)  # type: ignore[arg-type]  # only what may be None is

    def to_dict(self) -> dict[str, Any]:
        """The trace in JSON's types; `from_dict` gives it back."""
        record = {one.name: getattr(self, one.name) for one in fields(self)}
        record["prompt_ids"] = list(self.prompt_ids)
        record["new_ids"] = list(self.new_ids)
        record["prompt_bytes"] = _to_text(self.prompt_bytes)
        record["pieces"] = {
            **_to_text(b"".join(self.pieces)),
            "lengths": [len(piece) for piece in self.pieces],
        }
        record["evidence"] = None if self.evidence is None else dict(self.evidence)
        record["curve"] = [list(point) for point in self.curve]
        record["checks"] = [check._asdict() for check in self.checks]
        record["dropped"] = list(self.dropped)
        record["action"] = None if self.action is None else dict(self.action)
        record["signals"] = {
            name: [list(at) for at in signal] for name, signal in self.signals.items()
        }
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Trace:
        """A trace from what `to_dict` gave, e.g. after JSON.

        Raises:
            InvalidValue: a field is missing, unknown, or cannot be read.
        """
        known = [one.name for one in fields(cls)]
        if not isinstance(record, Mapping):
            raise InvalidValue("trace", record, "a record written by Trace.to_dict")
        for name in (*known, *record):
            if name not in record or name not in known:
                raise InvalidValue("trace", name, "exactly the fields " + ", ".join(known), known)
        values = dict(record)
        try:
            for name in ("prompt_ids", "new_ids", "dropped"):
                values[name] = _whole(name, record[name])
            values["prompt_bytes"] = _from_text(record["prompt_bytes"])
            lengths = _whole("lengths", record["pieces"]["lengths"])
            values["pieces"] = _split(_from_text(record["pieces"]), lengths)
            values["curve"] = tuple(
                (None if tokens is None else _natural(tokens), _natural(raw), _natural(small))
                for tokens, raw, small in record["curve"]
            )
            values["checks"] = tuple(_cost(check) for check in record["checks"])
            values["signals"] = {
                _word(name): tuple((_natural(tokens), _number(number)) for tokens, number in signal)
                for name, signal in record["signals"].items()
            }
            for name, check in _SCALARS.items():
                check(record[name])
            for name in ("evidence", "action"):
                if not (record[name] is None or isinstance(record[name], Mapping)):
                    raise TypeError(f"{name} is {record[name]!r}")
            if len(values["pieces"]) != len(values["new_ids"]):
                raise ValueError("a piece of text for every token")
            return cls(**values)
        # OverflowError: numbers too large for bytes; LookupError: an encoding nobody knows.
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InvalidValue("trace", str(error), "a record written by Trace.to_dict") from error


def _natural(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is no whole number from 0")
    return value


def _number(value: object) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{value!r} is no number")
    return value  # type: ignore[return-value]  # just looked at


def _word(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _or_none(check: Callable[[object], object]) -> Callable[[object], object]:
    return lambda value: None if value is None else check(value)


#: Checks of the fields that stand in a record as they are.
_SCALARS: Mapping[str, Callable[[object], object]] = {
    "finish": _word,
    "keys_kept_max": _natural,
    "keys_read_max": _or_none(_natural),
    "keys_read_mean": _or_none(_number),
    "dense_layer_keys_read_mean": _or_none(_number),
    "cache_bytes_peak": _natural,
    "prefill_sec": _number,
    "decode_sec": _or_none(_number),
    "reused_tokens": _natural,
    "positions": _or_none(_natural),
}


def _whole(name: str, values: Sequence[Any]) -> tuple[int, ...]:
    """Token ids or lengths; looked at all at once, for there are thousands."""
    found = tuple(values)
    if not set(map(type, found)) <= {int} or (found and min(found) < 0):
        raise TypeError(f"{name} are no whole numbers from 0")
    return found


def _cost(check: Mapping[str, Any]) -> Cost:
    cost = Cost(*(check[name] for name in Cost._fields))
    _natural(cost.tokens)
    for value in (cost.keys_read, cost.cache_bytes, cost.read_sum):
        _number(value)
    for maybe in (cost.seconds, cost.dense_read_sum):
        _or_none(_number)(maybe)
    return cost


def _to_text(data: bytes) -> dict[str, Any]:
    """Readable where it can be, exact always: text that ends inside a character is not UTF-8."""
    try:
        return {"text": data.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"text": data.decode("latin-1"), "encoding": "latin-1"}


def _from_text(record: Mapping[str, Any]) -> bytes:
    return _word(record["text"]).encode(_word(record["encoding"]))


def _split(data: bytes, lengths: Sequence[int]) -> tuple[bytes, ...]:
    if sum(lengths) != len(data):
        raise ValueError(f"pieces: {len(data)} bytes, lengths add up to {sum(lengths)}")
    ends = [*accumulate(lengths)]
    return tuple(map(data.__getitem__, map(slice, [0, *ends], ends)))
