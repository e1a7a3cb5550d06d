"""Sparse attention that loses nothing: the backend drafts, full attention checks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention import AttentionCache
from attention.errors import InvalidValue
from lil.decoding.batch import Batch
from lil.decoding.choosing import BatchPenalties
from lil.decoding.lane import Lane, RunContext
from lil.decoding.ledger import StepCost
from lil.decoding.loop import Callbacks, DecodeLoop
from lil.decoding.options import Request
from lil.decoding.sampling import NotFiniteError
from lil.hidden_states import widened
from lil.trace import Trace


@dataclass(frozen=True)
class Round:
    """The result of a round of drafts and one check; keys are (B,).

    Attributes:
        ids: the token before the drafts, and the drafts, (B, k + 1).
        drafts: tokens drafted, (B, k).
        chosen: full attention's tokens behind each of `ids`, (B, k + 1); a token counts where all
            drafts before it are the same.
        finite: whether their scores were finite, (B, k + 1).
        cost: of drafts and check.
    """

    ids: Tensor
    drafts: list[list[int]]
    chosen: list[list[int]]
    finite: list[list[bool]]
    cost: StepCost
    draft_keys: Any
    check_keys: Any

    def accepted(self, place: int) -> int:
        """Drafts of a row that full attention would have chosen, from the first on."""
        pairs = zip(self.drafts[place], self.chosen[place], strict=False)
        return next((n for n, (a, b) in enumerate(pairs) if a != b), len(self.drafts[place]))


class SpeculativeLoop(DecodeLoop):
    """A decode loop whose step is a round: drafts under the backend, a check under full attention.

    Speculative decoding (Leviathan et al., arXiv 2211.17192) with the model as its own drafter, as
    in TriForce (arXiv 2404.11912). Where we differ: draft and check use the same uniform number for
    a token instead of a ratio of probabilities, so that the output is full attention's with that
    seed, token for token. The loop forgets drafts before the check, so the cache holds what full
    attention computes.

    Every token passes detectors, penalties and caps in its turn.
    """

    def __init__(
        self, model: Any, requests: Sequence[Request], shared: RunContext, callbacks: Callbacks
    ) -> None:
        super().__init__(model, requests, shared, callbacks)
        self.lag = 0  # the next drafts depend on what was accepted
        self.drafting, self.checking = (BatchPenalties(shared.options.penalties) for _ in "dc")

    def _all(self) -> Iterator[tuple[int, Trace]]:
        session = self.sparse.cache.session
        if session.anatomy.states or any(window is not None for window in session.windows):
            model = self.model.config.get_text_config().model_type
            allowed = f"0 for {model}: some of its layers cannot forget drafts again"
            raise InvalidValue("speculate", self.shared.options.speculate, allowed)
        options, switch = self.shared.options, session.anatomy.switch
        longest = max(len(x.prompt_ids) + (x.max_new_tokens or 0) for _, x in self.queue)
        if switch is not None and longest > switch:
            allowed = f"0 for texts of more than {switch} tokens, which this model reads anew"
            raise InvalidValue("speculate", options.speculate, allowed)
        yield from super()._all()

    @torch.inference_mode()
    def _advance(self, batch: Batch, rows: Sequence[Lane], newcomers: bool = False) -> None:
        if newcomers or batch is not self.sparse:
            super()._advance(batch, rows, newcomers)
            return
        started = time.perf_counter()
        result = self._round(batch)
        landed = time.perf_counter()
        batch.bill(landed - started)
        planned = [result.accepted(row.place) + 1 for row in rows]
        batch.ledger.add(result.cost, steps=planned)
        taken = [self._take_some(batch, row, result, planned[row.place]) for row in rows]
        batch.cache.rewind(range(len(rows)), self._seen(rows))
        batch.newest = torch.tensor([row.new_ids[-1] for row in rows], device=batch.newest.device)
        for row, n in zip(rows, taken, strict=True):
            if row.check_due and n < planned[row.place]:
                self._check(batch, [row])
        batch.unbilled += time.perf_counter() - landed
        if self.callbacks.step is not None:
            self.callbacks.step(self.tokens_done)

    def _round(self, batch: Batch) -> Round:
        """Draft, forget the drafts, check them all in one forward."""
        rows, seen = batch.rows, self._seen(batch.rows)
        count = self._room(seen)
        uniforms = [] if self.sampler.greedy else [row.ahead(count + 1) for row in rows]
        first, columns, costs = batch.newest, [batch.newest], []
        for step in range(count):
            batch.newest = columns[-1]
            logits = self._decode(batch)
            costs.append(StepCost.of(batch.cache.row_stats()))
            scores = self.drafting(rows, columns[-1], logits)
            tokens, _ = self.sampler.draw(scores, [each[step] for each in uniforms])
            columns.append(tokens)
            for row in rows:
                row.unread += 1
        for row in rows:
            row.unread = 0
        batch.newest = first
        batch.cache.rewind(range(len(rows)), seen)
        ids = torch.stack(columns, dim=1)
        chosen, finite = self._checked(batch, ids, uniforms)
        draft_keys = sum((step.keys_read for step in costs), np.zeros(len(rows)))
        check = self._check_cost(batch, seen, count)
        return Round(
            ids, ids[:, 1:].tolist(), chosen.tolist(), finite.tolist(), _summed([*costs, check]),
            draft_keys, check.keys_read,
        )  # fmt: skip

    @staticmethod
    def _seen(rows: Sequence[Lane]) -> list[int]:
        """Tokens that the cache holds of each row: all but its newest."""
        return [len(row.prompt_ids) + len(row.new_ids) - 1 for row in rows]

    def _read(self, cache: AttentionCache, ids: Tensor, scored: int) -> Tensor:
        """Read tokens (B, T) under full attention; scores of the last `scored` of them."""
        positions = cache.seen[:, None] + torch.arange(ids.shape[1], device=ids.device)
        self.hidden.here_only()
        with cache.dense():
            output = self.model(
                input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True,
                logits_to_keep=scored,
            )  # fmt: skip
        return widened(output.logits)

    def _room(self, seen: Sequence[int]) -> int:
        """Drafts of this round: no position beyond the model's last is ever fed."""
        options, positions = self.shared.options, self.shared.positions
        if positions is None or options.beyond_positions:
            return options.speculate
        return max(0, min(options.speculate, positions - max(seen) - 1))

    def _checked(
        self, batch: Batch, ids: Tensor, uniforms: Sequence[Sequence[float]]
    ) -> tuple[Tensor, Tensor]:
        """What full attention chooses behind each of ids, (B, k + 1), and if scores were finite."""
        rows = batch.rows
        logits = self._read(batch.cache, ids, ids.shape[1])
        chosen, finite = [], []
        for step in range(ids.shape[1]):
            for row in rows:
                row.unread = step
            scores = self.checking(rows, ids[:, step], logits[:, step])
            tokens, good = self.sampler.draw(scores, [each[step] for each in uniforms])
            chosen.append(tokens)
            finite.append(good)
        for row in rows:
            row.unread = 0
        return torch.stack(chosen, dim=1), torch.stack(finite, dim=1)

    def _check_cost(self, batch: Batch, seen: Sequence[int], count: int) -> StepCost:
        """A check reads every key once for all its queries."""
        current = StepCost.of(batch.cache.row_stats())
        keys = np.array(seen, dtype=np.float64) + count + 1
        return current._replace(
            keys_read=keys * batch.cache.kv_heads,
            read_mean=keys,
            dense_read_mean=None if current.dense_read_mean is None else keys,
            read_max=keys,
        )

    def _take_some(self, batch: Batch, row: Lane, result: Round, planned: int) -> int:
        """Give a row its tokens, one by one, until one of them ends it; how many it took."""
        place = row.place
        row.drafts.update({
            "rounds": 1, "drafted": len(result.drafts[place]), "accepted": 0, "rejected": 0,
            "draft_keys": float(result.draft_keys[place]),
            "check_keys": float(result.check_keys[place]),
        })  # fmt: skip
        most = int(result.cost.bytes[place])
        row.drafts["check_bytes"] = max(row.drafts["check_bytes"], most)
        for n in range(planned):
            if not result.finite[place][n]:
                raise NotFiniteError
            if not self.sampler.greedy:
                row.draw()
            token = result.chosen[place][n]
            self.tokens_done += 1
            taken = row.take(token)
            accepted = n < planned - 1 and taken == token
            row.drafts["accepted"] += accepted
            row.drafts["rejected"] += not accepted and n < len(result.drafts[place])
            self._tell(row, taken)
            last = row.finish is not None or row.due is not None or taken != token
            if last and n + 1 < planned:
                batch.ledger.take_back(place, planned - n - 1)
                return n + 1
            if row.check_due:
                self._check(batch, [row])
        return planned


def _summed(costs: Sequence[StepCost]) -> StepCost:
    """Of several forwards: what was read adds up, what is held is the last one's."""
    last = costs[-1]
    dense = [step.dense_read_mean for step in costs if step.dense_read_mean is not None]
    return StepCost(
        keys_read=np.sum([step.keys_read for step in costs], axis=0),
        read_mean=np.sum([step.read_mean for step in costs], axis=0),
        dense_read_mean=np.sum(dense, axis=0) if dense else None,
        read_max=np.maximum.reduce([step.read_max for step in costs]),
        kept_max=np.maximum.reduce([step.kept_max for step in costs]),
        bytes=last.bytes,
    )
