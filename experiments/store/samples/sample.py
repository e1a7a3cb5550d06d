"""One decoded problem as the statistics see it: a trace, scored, under one detector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lil.compression.curves import Point

Status = Literal["ok", "capped", "stopped", "out_of_memory", "error", "missing"]


Role = Literal["method", "control", "null"]

#: Model, data set, penalty, backend, budget and the backend's parameters: a configuration.
Key = tuple[str, str, str, str, int | None, str]


@dataclass(frozen=True)
class Shorter:
    """What a smaller cap leaves of a trace."""

    factor: int
    status: Status
    tokens: int
    correct: bool | None
    keys_read: float | None


@dataclass(frozen=True)
class Sample:
    """What one problem gave under one configuration. Missing is None, never 0.

    A detector's sample is the same trace cut where the detector fired; `detector="none"` is the
    trace as decoded. One that acts has a trace of its own, whose seconds are None, since its rows
    were decoded in smaller batches. A run that the store cannot serve is "missing".

    Fields are the columns of docs/measures.md, in tokens, seconds, bytes and keys. `curve` holds
    (tokens, original bytes, compressed bytes) of the output alone. Wasted is what
    `repetition.exact` and `repetition.tolerant` count.
    """

    model: str
    dataset: str  # for the reasoner one per level: "easy", "medium", "hard"
    item_id: str
    sample_index: int
    backend: str
    backend_params: tuple[tuple[str, object], ...]
    budget: int | None  # None for full attention
    penalty: str  # "none" or a name with parameters
    detector: str = "none"  # or a name
    action: str = "none"  # or what the detector does when it fires: "stop", "answer", ...
    status: Status = "missing"
    finish: str | None = None  # "eos", "length", the detector's name; None for an error
    message: str | None = None  # the error's text
    text: str | None = None  # see `replay.with_text`
    tokens: int | None = None  # of the output, eos counted
    correct: bool | None = None
    stopped_at: int | None = None  # tokens at which the detector fired
    prefill_sec: float | None = None
    decode_sec: float | None = None
    keys_read: float | None = None
    keys_kept_max: int | None = None
    keys_read_mean: float | None = None
    keys_read_max: int | None = None
    dense_layer_keys_read_mean: float | None = None
    cache_bytes_peak: int | None = None
    cache_byte_sec: float | None = None
    curve: tuple[Point, ...] = ()
    repeated: bool | None = None  # some block repeated back to back at least 20 times
    looping: bool | None = None  # some 30 tokens in a row stand at 20 places or more
    reused_tokens: int = 0
    dropped_tokens: int = 0  # decoded and chopped off again: paid for, not in the output
    asked_tokens: int = 0  # read and decoded for what a detector asked: paid for as well
    asked_keys: float = 0.0  # the same, of `keys_read`
    first_right: int | None = None  # tokens before the first trial answer that is its right answer
    sweep: str | None = None  # that decoded it
    batch_size: int | None = None  # rows decoded together
    workers: int = 1  # that decoded at the same time, and may have shared a machine
    record: str | None = None  # id of the stored record it was read from
    # Tokens that only repeated earlier ones, before the cap and left by the detector.
    wasted_loop: int | None = None
    wasted_tail: int | None = None
    role: Role = "method"  # or "control", "null": what its backend is compared for
    output: str | None = None  # a digest of its tokens: equal where the outputs are
    shorter: tuple[Shorter, ...] = ()  # the same at smaller caps, the smallest first
    at_positions: bool = False
    gold: str | None = None  # the accepted answer; several are joined by " or "
    answer: str | None = None  # as the text has it; None where a scorer finds none
    rule: str | None = None  # that read it, or by which a scorer of one's own accepts the text

    @property
    def paid_tokens(self) -> int | None:
        """Tokens that were decoded, even if a detector dropped them, or asked for them."""
        spent = self.dropped_tokens + self.asked_tokens
        return None if self.tokens is None else self.tokens + spent

    @property
    def run(self) -> tuple[object, ...]:
        """What this sample shares with those of the same run under other detectors."""
        return (*self.key, self.item_id, self.sample_index)

    @property
    def key(self) -> Key:
        """What the samples of one configuration share, whatever their problem and detector."""
        params = repr(sorted(self.backend_params))
        return self.model, self.dataset, self.penalty, self.backend, self.budget, params

    @property
    def pair(self) -> tuple[str, str, str, int]:
        """What this sample shares with the full-attention run of the same problem."""
        return (self.model, self.dataset, self.item_id, self.sample_index)


def setting(sample: Sample) -> tuple[str, int] | None:
    """What seconds of one sample share with those of another; None where that is not known."""
    if sample.sweep is None or sample.batch_size is None or sample.workers > 1:
        return None
    return sample.sweep, sample.batch_size


def is_usable(sample: Sample) -> bool:
    """Whether the sample was decoded at all."""
    return sample.status not in ("error", "out_of_memory", "missing")
