"""From a finished row to its trace, given tokens charged as if they had been decoded."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lil.decoding.lane import Lane
from lil.trace import Cost, Trace


@dataclass(frozen=True)
class Reuse:
    """What the forced first tokens of a row would have cost.

    The backend equals full attention there: the step that sees n tokens reads n keys in every KV
    head of every layer, or the window (tokens; None: none) of the model's own sliding layers. When
    t tokens are there, t - 1 steps have been made.
    """

    prompt: int
    tokens: int
    kv_heads: int
    windows: tuple[int | None, ...]
    bytes_per_token: float
    step_sec: float | None

    def steps(self, generated: int) -> int:
        """Steps spared when `generated` tokens are there."""
        return min(self.tokens, max(0, generated - 1))

    def key_sum(self, generated: int, window: int | None = None) -> int:
        """Keys one head of a layer would have read in those steps."""
        steps = self.steps(generated)
        whole = steps if window is None else min(max(window - self.prompt, 0), steps)
        return whole * self.prompt + whole * (whole + 1) // 2 + (steps - whole) * (window or 0)

    def keys_read(self, generated: int) -> int:
        """Keys all layers and KV heads would have read in those steps."""
        return self.kv_heads * sum(self.key_sum(generated, window) for window in self.windows)

    def added_to(self, own: Cost) -> Cost:
        """What the row's own steps cost and the spared ones would have."""
        if not self.tokens:
            return own
        generated, cache_bytes, spared = own.tokens, own.cache_bytes, self.key_sum(own.tokens)
        if generated <= self.tokens:
            cache_bytes = self.bytes_per_token * (self.prompt + generated - 1)
        seconds = own.seconds
        if self.tokens and seconds is not None:
            step = self.step_sec
            seconds = None if step is None else seconds + step * self.steps(generated)
        dense = None if own.dense_read_sum is None else own.dense_read_sum + spared
        keys = own.keys_read + self.keys_read(generated)
        return Cost(generated, keys, cache_bytes, seconds, own.read_sum + spared, dense)


def make_trace(
    row: Lane, kv_heads: int, windows: tuple[int | None, ...], check_every: int
) -> Trace:
    """The record of a finished row; `windows` are the model's own, of each layer."""
    totals = row.totals
    if row.finish is None or totals is None:
        raise RuntimeError("a trace of a row that has not ended")
    generated, prompt = len(row.new_ids), len(row.prompt_ids)
    own_steps, seconds = int(totals.steps), row.costs[-1].seconds
    reuse = Reuse(
        prompt=prompt,
        tokens=row.reused,
        kv_heads=kv_heads,
        windows=windows,
        bytes_per_token=totals.bytes_at_start / len(row.prefix),
        step_sec=seconds / own_steps if own_steps and seconds is not None else None,
    )
    early = range(check_every, min(row.reused, generated - 1) + 1, check_every)
    dense = not math.isnan(totals.dense_read_sum)
    nothing = Cost(0, 0.0, 0.0, 0.0, 0.0, 0.0 if dense else None)
    checks = [reuse.added_to(nothing._replace(tokens=t)) for t in early]
    checks += [reuse.added_to(cost) for cost in row.costs]
    steps = own_steps + reuse.steps(generated)
    spared = reuse.key_sum(generated)
    longest_spared = prompt + reuse.steps(generated) if spared else 0

    def mean(own_sum: float) -> float | None:
        return (own_sum + spared) / steps if steps else None

    return Trace(
        prompt_ids=row.prompt_ids,
        new_ids=tuple(row.new_ids),
        prompt_bytes=row.prompt_bytes,
        pieces=tuple(row.pieces),
        finish=row.finish,
        evidence=row.evidence,
        curve=tuple(row.curve),
        checks=tuple(checks),
        # The last spared step is the row's own state; before it everything was kept.
        keys_kept_max=max(int(totals.kept_max), longest_spared - 1),
        keys_read_max=max(int(totals.read_max), longest_spared) if steps else None,
        keys_read_mean=mean(totals.read_sum),
        dense_layer_keys_read_mean=mean(totals.dense_read_sum) if dense else None,
        cache_bytes_peak=int(totals.bytes_peak),
        prefill_sec=row.prefill_sec,
        decode_sec=checks[-1].seconds,
        reused_tokens=row.reused,
        dropped=tuple(row.dropped),
        action=row.acted,
        signals=row.signals,
        positions=row.positions,
        speculation=dict(row.drafts) if row.drafts else None,
    )
