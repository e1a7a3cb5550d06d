"""The record of one decoded sequence: its text, why it ended, and what it cost at every check."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from attention.errors import InvalidValue
from lil.compression.curves import Point

#: What a detector made of the model's states: (generated tokens, number), ascending.
Signal: TypeAlias = tuple[tuple[int, float], ...]


Natural: TypeAlias = Annotated[int, Meta(ge=0)]
Amount: TypeAlias = Annotated[float, Meta(ge=0)]


class Cost(NamedTuple):
    """Cost up to a number of generated tokens.

    `keys_read` is cumulative over steps, layers and KV heads, page bounds and representatives in
    key equivalents; `cache_bytes` is held at that moment; `seconds` is cumulative decode time, None
    where the row decoded nothing of its own. `read_sum` and `dense_read_sum` (None without dense
    layers) add up each step's mean over sparsified (dense) layers and query heads.
    """

    tokens: int
    keys_read: float
    cache_bytes: float
    seconds: float | None
    read_sum: float
    dense_read_sum: float | None


@dataclass(frozen=True)
class Trace:
    """One generation, JSON-able through `to_dict`, in tokens, bytes and seconds; missing is None.

    Args:
        prompt_ids: the prompt's token ids.
        new_ids: the generated ids, `eos` included.
        prompt_bytes: the prompt's text as the detectors saw it.
        pieces: bytes of each generated token; joined, they are the decoded text.
        finish: "eos", "length", or the name of the detector that ended it.
        evidence: that detector's evidence, else None.
        curve: compression curve of the output alone (without `eos`), every `check_every` tokens and
            at the end.
        checks: costs every `check_every` tokens and at the end.
        keys_kept_max: most keys after a step, over steps, sparsified layers and heads.
        keys_read_max, keys_read_mean: keys read by a decode query over sparsified layers and query
            heads, most and mean over steps; None without a step.
        dense_layer_keys_read_mean: the same mean over the backend's dense layers; None without.
        cache_bytes_peak: most bytes of keys, values and method state after a step.
        prefill_sec: this row's share of the forward passes that read its prompt, by tokens.
        decode_sec: this row's share of the decode steps (a step's seconds / rows active).
        dropped: ids that were decoded and chopped off again; costs are those of the whole run.
        action: `name` and parameters of an action after which the row went on, `detector` and its
            `evidence`, `step` (tokens when it fired), `kept` and `dropped` of them, and the cue's
            `cue_tokens`; of several the last, with their number (`verdicts`); else None.
        signals: by name, numbers that detectors made of hidden states: (generated tokens, number).
        reused_tokens: how many of `new_ids` came with the request. They are charged as if decoded:
            n keys in every layer and KV head for the step that sees n tokens, bytes in proportion
            to n, seconds at the row's own mean per step.
        positions: tokens the model was made for, prompt included; None where its config names no
            number.
        speculation: with `DecodeOptions.speculate`: `rounds`, tokens `drafted`, `accepted` and
            `rejected`, keys read by drafts and checks (`draft_keys`, `check_keys`), and the most
            bytes of the checked cache (`check_bytes`); else None.
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
    speculation: Mapping[str, float] | None = None

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
        record = {item.name: getattr(self, item.name) for item in fields(self)}
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
        if self.speculation is None:
            del record["speculation"]
        else:
            record["speculation"] = dict(self.speculation)
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Trace:
        """A trace from what `to_dict` gave, e.g. after JSON.

        Raises:
            InvalidValue: a field is missing, unknown, or cannot be read.
        """
        known = [item.name for item in fields(cls)]
        if not isinstance(record, Mapping):
            raise InvalidValue("trace", record, "a record written by Trace.to_dict")
        for name in (*known, *record):
            if name not in known or (name not in record and name != "speculation"):
                raise InvalidValue("trace", name, "exactly the fields " + ", ".join(known), known)
        try:
            return msgspec.convert(record, TraceFields).trace()
        # Half a character is in no encoding, and some numbers are too large to print.
        except (msgspec.ValidationError, UnicodeError, OverflowError) as error:
            raise InvalidValue("trace", str(error), "a record written by Trace.to_dict") from error


class CostFields(msgspec.Struct, forbid_unknown_fields=True):
    """A `Cost` in a record."""

    tokens: Natural
    keys_read: Amount
    cache_bytes: Amount
    seconds: Amount | None
    read_sum: Amount
    dense_read_sum: Amount | None


class TextFields(msgspec.Struct):
    """Bytes in a record, readable where they are text."""

    text: str
    encoding: Literal["utf-8", "latin-1"]

    def bytes(self) -> bytes:
        return self.text.encode(self.encoding)


class PiecesFields(TextFields):
    """The bytes of all tokens in a record, and how many each has."""

    lengths: tuple[Natural, ...]


class TraceFields(msgspec.Struct, forbid_unknown_fields=True):
    """A record as `Trace.to_dict` makes it: fields, types and ranges."""

    prompt_ids: tuple[Natural, ...]
    new_ids: tuple[Natural, ...]
    prompt_bytes: TextFields
    pieces: PiecesFields
    finish: str
    evidence: dict[str, Any] | None
    curve: tuple[tuple[Natural | None, Natural, Natural], ...]
    checks: tuple[CostFields, ...]
    keys_kept_max: Natural
    keys_read_max: Natural | None
    keys_read_mean: Amount | None
    dense_layer_keys_read_mean: Amount | None
    cache_bytes_peak: Natural
    prefill_sec: Amount
    decode_sec: Amount | None
    reused_tokens: Natural
    dropped: tuple[Natural, ...]
    action: dict[str, Any] | None
    signals: dict[str, tuple[tuple[Natural, float], ...]]
    positions: Natural | None
    speculation: dict[str, Amount] | None = None

    def __post_init__(self) -> None:
        lengths = self.pieces.lengths
        if len(lengths) != len(self.new_ids) or sum(lengths) != len(self.pieces.bytes()):
            raise ValueError("a piece of text for each token")

    def trace(self) -> Trace:
        """The trace it is a record of."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        data, ends = self.pieces.bytes(), [*accumulate(self.pieces.lengths)]
        values["prompt_bytes"] = self.prompt_bytes.bytes()
        values["pieces"] = tuple(map(data.__getitem__, map(slice, [0, *ends], ends)))
        values["checks"] = tuple(Cost(*msgspec.structs.astuple(item)) for item in self.checks)
        return Trace(**values)


def _to_text(data: bytes) -> dict[str, Any]:
    """Readable where it can be, exact always: text that ends inside a character is not UTF-8."""
    try:
        return {"text": data.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"text": data.decode("latin-1"), "encoding": "latin-1"}
