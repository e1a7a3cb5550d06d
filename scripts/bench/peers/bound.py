"""What full attention cannot be faster than: the model without attention, and bytes to be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from no_attention import rest_seconds

from attention.methods import get
from attention.patching.compiled import CompiledStep, NotCompiled, compiled
from peers.work import Tokens


class Step(NamedTuple):
    """One decode step: rows that take part, and keys that a KV head of a layer reads for them."""

    rows: int
    keys: int


@dataclass(frozen=True)
class Bound:
    """Least seconds of a run, in parts.

    Attributes:
        prompts_s: the model without attention over all prompts' tokens.
        model_s: the model without attention, summed over decode steps at their numbers of rows.
        read_bytes: keys and values that the decode steps read.
        read_s: that at the measured bandwidth.
        steps: decode steps.
    """

    prompts_s: float
    model_s: float
    read_bytes: int
    read_s: float
    steps: int

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.prompts_s + self.model_s + self.read_s


def compiled_step(model: Any) -> CompiledStep | None:
    """The model's compiled step; where there is none, the bound is of the model as it is."""
    try:
        with get("full").on(model) as cache:
            return compiled(model, cache)
    except NotCompiled:
        return None


def decode_steps(prompts: Sequence[Sequence[int]], outputs: Tokens) -> list[Step]:
    """The steps of a batch from which rows leave as they end; the last token is never read."""
    rows = [(len(prompt), len(out)) for prompt, out in zip(prompts, outputs, strict=True)]
    most = max(out for _, out in rows)
    steps = []
    for t in range(1, most):
        reading = [prompt + t for prompt, out in rows if out > t]
        steps.append(Step(len(reading), sum(reading)))
    return steps


def bound(
    model: Any,
    prompts: Sequence[Sequence[int]],
    outputs: Tokens,
    bandwidth: float,
    rest: Callable[[Any, int, int], float] = rest_seconds,
) -> Bound:
    """The bound of decoding these outputs in one batch.

    Args:
        model: loaded.
        prompts, outputs: token ids.
        bandwidth: bytes a second.
        rest: seconds of a forward without attention of (model, rows, tokens).
    """
    config = model.config
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = config.num_hidden_layers * config.num_key_value_heads
    steps = decode_steps(prompts, outputs)
    per_key = 2 * heads * head * model.dtype.itemsize
    size = per_key * sum(step.keys for step in steps)
    forward = {rows: rest(model, rows, 1) for rows in {step.rows for step in steps}}
    return Bound(
        # Without padding, which nobody has to compute.
        prompts_s=rest(model, 1, sum(map(len, prompts))),
        model_s=sum(forward[step.rows] for step in steps),
        read_bytes=size,
        read_s=size / bandwidth,
        steps=len(steps),
    )
