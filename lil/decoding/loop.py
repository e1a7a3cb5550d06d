"""The decode loop: `DecodeLoop._advance` is the order of one step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from attention import AttentionCache, Backend
from lil.decoding.ledger import Ledger
from lil.decoding.record import make_trace
from lil.decoding.request import Request
from lil.decoding.row import Row
from lil.sampling import Sampler
from lil.trace import Trace


class DecodeLoop:
    """A batch of rows, each its own sequence; a finished row's place goes to the next request.

    Args:
        model: a causal language model of transformers.
        backend: how it attends.
        sampler: how a token is chosen.
        requests: what to generate, in order of admission.
        batch_size: most rows at a time.
        check_every: generated tokens between checks.
        new_row: a row for a request and a place in the batch.
        on_step: called after every step with the number of tokens chosen so far.
    """

    def __init__(
        self,
        model: Any,
        backend: Backend,
        sampler: Sampler,
        requests: Sequence[Request],
        batch_size: int,
        check_every: int,
        new_row: Callable[[Request, int], Row],
        on_step: Callable[[int], None] | None,
    ) -> None:
        self.model, self.backend, self.sampler = model, backend, sampler
        self.check_every, self.new_row, self.on_step = check_every, new_row, on_step
        self.queue = deque(requests)
        self.batch = min(batch_size, len(requests))
        self.rows: list[Row] = []  # a row's index is its place in cache, ledger and newest
        self.cache: AttentionCache
        self.ledger = Ledger(self.batch)
        self.newest = torch.zeros(self.batch, dtype=torch.int64, device=model.device)
        self.tokens_done = 0
        self.decode_sec = 0.0  # a row's share of all decode steps, had it been here from the start
        self._unbilled = 0.0
        config = model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self._kv_heads: int = heads

    def run(self) -> Iterator[tuple[int, Trace]]:
        """Every request's index and trace, as they finish."""
        if not self.queue:
            return
        with self.backend.on(self.model) as self.cache:
            yield from self._admit(list(range(self.batch)))
            while self.rows:
                self._advance(self.rows)
                ended = [row for row in self.rows if row.finish is not None]
                if ended:
                    yield from self._traces(ended)
                    yield from self._admit([row.place for row in ended])

    @torch.inference_mode()
    def _advance(self, rows: Sequence[Row], newcomers: bool = False) -> None:
        """One token for each of `rows`: the whole batch, or newcomers whose prompts are read."""
        started = time.perf_counter()
        logits = self._prefill(rows) if newcomers else self._decode()
        scores = self._penalise(rows, logits)
        uniforms = [] if self.sampler.greedy else [row.draw() for row in rows]
        chosen = self.sampler(scores, uniforms)  # temperature, top-k, top-p, one uniform a token
        tokens = chosen.tolist()  # waits for the device: the clock below has seen the work
        sampled = time.perf_counter()
        self._bill(rows, newcomers, sampled - started)

        for row, token in zip(rows, tokens, strict=True):
            if row.finish is None:  # a given prefix may have ended a newcomer already
                self.tokens_done += 1
                row.append(token)
                row.judge()  # detectors; `eos` beats the cap, the cap beats a verdict
        self._check([row for row in rows if row.check_due])

        if newcomers:
            self.newest[[row.place for row in rows]] = chosen
        else:
            self.newest = chosen
        self._unbilled += time.perf_counter() - sampled
        if self.on_step is not None:
            self.on_step(self.tokens_done)

    def _prefill(self, rows: Sequence[Row]) -> Tensor:
        """Read newcomers' prompts, padded on the left, into their places; logits (B, V)."""
        width = max(len(row.prefix) for row in rows)
        # Padding is masked, so any id serves.
        ids = torch.tensor([[0] * (width - len(row.prefix)) + [*row.prefix] for row in rows])
        mask = torch.tensor([[0] * (width - len(r.prefix)) + [1] * len(r.prefix) for r in rows])
        cache = self.cache.new() if self.rows else self.cache
        logits = self._forward(
            cache,
            input_ids=ids.to(self.model.device),
            attention_mask=mask.to(self.model.device),
            position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0).to(self.model.device),
        )
        places = [row.place for row in rows]
        self.ledger.admit(places, cache.row_stats())
        if self.rows:
            self.cache.replace_rows(places, cache)
        return logits

    def _decode(self) -> Tensor:
        """Read every row's newest token; logits (B, V)."""
        positions = self.cache.seen[:, None]
        logits = self._forward(self.cache, input_ids=self.newest[:, None], position_ids=positions)
        self.ledger.add(self.cache.row_stats())
        return logits

    def _forward(self, cache: AttentionCache, **inputs: Tensor) -> Tensor:
        output = self.model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
        logits = output.logits[:, -1]
        # Half precision is widened before anything acts on it; float64 stays.
        return cast(Tensor, logits.to(torch.promote_types(logits.dtype, torch.float32)))

    def _penalise(self, rows: Sequence[Row], logits: Tensor) -> Tensor:
        if not rows[0].has_penalties:
            return logits
        return torch.cat([row.penalise(logits[i : i + 1]) for i, row in enumerate(rows)])

    def _bill(self, rows: Sequence[Row], newcomers: bool, seconds: float) -> None:
        """Divide a step's seconds: by tokens read among newcomers, else evenly among the rows."""
        if newcomers:
            per_token = seconds / sum(len(row.prefix) for row in rows)
            for row in rows:
                row.prefill_sec = per_token * len(row.request.prompt_ids)
                row.started_at = self.decode_sec
        else:
            # What detectors and meters took is known only after their checks: the next step pays.
            self.decode_sec += (seconds + self._unbilled) / len(rows)
            self._unbilled = 0.0

    def _check(self, rows: Sequence[Row]) -> None:
        if rows:
            totals = self.ledger.read()
            for row in rows:
                row.check(totals[row.place], self.decode_sec - row.started_at)

    def _traces(self, rows: Sequence[Row]) -> Iterator[tuple[int, Trace]]:
        for row in rows:
            yield (
                row.request.index,
                make_trace(row, self._kv_heads, self.cache.runtime.windows, self.check_every),
            )

    def _admit(self, free: list[int]) -> Iterator[tuple[int, Trace]]:
        """Give free places to the next requests, and drop those that nobody needs any more."""
        while free and self.queue:
            count = min(len(free), len(self.queue))
            newcomers = [self.new_row(self.queue.popleft(), place) for place in free[:count]]
            self._advance(newcomers, newcomers=True)
            if not self.rows:
                self.rows = newcomers
            for row in newcomers:
                self.rows[row.place] = row
            ended = [row for row in newcomers if row.finish is not None]
            free = [row.place for row in ended] + free[count:]
            yield from self._traces(ended)
        if free:
            self._shrink([place for place in range(len(self.rows)) if place not in free])

    def _shrink(self, keep: list[int]) -> None:
        self.rows = [self.rows[place] for place in keep]
        if not keep:
            return
        for place, row in enumerate(self.rows):
            row.place = place
        self.cache.select_rows(keep)
        self.ledger.select(keep)
        self.newest = self.newest[keep]
