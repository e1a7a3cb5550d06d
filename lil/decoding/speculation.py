"""Sparse attention that loses nothing: the backend drafts, full attention checks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention import AttentionCache, Full
from attention.errors import InvalidValue
from lil.decoding.batch import Batch
from lil.decoding.choosing import BatchPenalties
from lil.decoding.lane import Lane, RunContext
from lil.decoding.ledger import StepCost
from lil.decoding.loop import Callbacks, DecodeLoop
from lil.decoding.options import Request
from lil.decoding.sampling import NotFiniteError
from lil.trace import Trace


@dataclass(frozen=True)
class Round:
    """The result of a round of drafts and one check; bytes and keys are (B,).

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
    draft_bytes: Any
    check_bytes: Any

    def accepted(self, place: int) -> int:
        """Drafts of a row that full attention would have chosen, from the first on."""
        pairs = zip(self.drafts[place], self.chosen[place], strict=False)
        return next((n for n, (a, b) in enumerate(pairs) if a != b), len(self.drafts[place]))


class Drafter(Batch):
    """The rows of a method that drops keys; its cache is copied after every draft."""

    def __init__(self, cache: AttentionCache, device: torch.device) -> None:
        super().__init__(cache, device, ())
        self.copies: list[AttentionCache] = []  # behind each token of this round

    def remember(self) -> None:
        """Copy the rows as they are, with one token more than at the last time."""
        self.copies.append(self.cache.clone())

    def go_back(self, read: Mapping[int, int]) -> None:
        """Rows (by place) are as they were when so many tokens of this round had been read."""
        for many in sorted(set(read.values())):
            some = [place for place, n in read.items() if n == many]
            self.cache.replace_rows(some, self.copies[many - 1], some)
        self.copies.clear()


class SpeculativeLoop(DecodeLoop):
    """A decode loop whose step is a round: drafts under the backend, a check under full attention.

    Speculative decoding (Leviathan et al., arXiv 2211.17192) with the model as its own drafter, as
    in TriForce (arXiv 2404.11912). Where we differ: draft and check use the same uniform number for
    a token instead of a ratio of probabilities, so that the output is full attention's with that
    seed, token for token. The loop forgets drafts before the check, so the cache holds what full
    attention computes.

    A method that drops keys drafts over a second cache. Every token passes detectors, penalties and
    caps in its turn.
    """

    def __init__(
        self, model: Any, requests: Sequence[Request], shared: RunContext, callbacks: Callbacks
    ) -> None:
        super().__init__(model, requests, shared, callbacks)
        self.lag = 0  # the next drafts depend on what was accepted
        self.before: AttentionCache | None = None  # the rows before drafts that cannot be cut
        self.drafter: Drafter | None = None  # the drafter of a method that drops keys
        if not shared.options.drafts_in_place:
            self.backend = Full()
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
        with ExitStack() as blocks:
            if not options.drafts_in_place:
                cache = blocks.enter_context(options.backend.on(self.model, options.engine))
                self.drafter = Drafter(cache, self.model.device)
            yield from super()._all()

    def _prefill(self, batch: Batch, rows: Sequence[Lane]) -> Tensor:
        logits = super()._prefill(batch, rows)
        if self.drafter is not None and batch is self.sparse:
            super()._prefill(self.drafter, rows)
            for row in rows:
                self.drafter.rows[row.place : row.place + 1] = [row]
            places = [row.place for row in rows]
            batch.ledger.hold_more(places, self._bytes(self.drafter)[places])
        return logits

    def _vacate(self, batch: Batch, free: Sequence[int]) -> None:
        if free and self.drafter is not None and batch is self.sparse:
            self.drafter.keep([place for place in range(len(batch.rows)) if place not in free])
        super()._vacate(batch, free)

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
        batch.ledger.reach(result.draft_bytes + result.check_bytes)
        taken = [self._take_some(batch, row, result, planned[row.place]) for row in rows]
        self._forget_rest(batch, taken, result)
        batch.newest = torch.tensor([row.new_ids[-1] for row in rows], device=batch.newest.device)
        for row, n in zip(rows, taken, strict=True):
            if row.check_due and n < planned[row.place]:
                self._check(batch, [row])
        batch.unbilled += time.perf_counter() - landed
        if self.callbacks.step is not None:
            self.callbacks.step(self.tokens_done)

    def _round(self, batch: Batch) -> Round:
        """Draft, forget the drafts, check them all in one forward."""
        rows, cache = batch.rows, batch.cache
        seen = [len(row.prompt_ids) + len(row.new_ids) - 1 for row in rows]
        count = self._room(seen)
        uniforms = [] if self.sampler.greedy else [row.ahead(count + 1) for row in rows]
        drafter = batch if self.drafter is None else self.drafter
        first, columns, costs = batch.newest, [batch.newest], []
        if not cache.rewindable:
            self.before = cache.clone(range(len(rows)))
        for step in range(count):
            drafter.newest = columns[-1]
            logits = self._decode(drafter)
            costs.append(StepCost.of(drafter.cache.row_stats()))
            if self.drafter is not None:
                self.drafter.remember()
            scores = self.drafting(rows, columns[-1], logits)
            tokens, _ = self.sampler.draw(scores, [each[step] for each in uniforms])
            columns.append(tokens)
            for row in rows:
                row.unread += 1
        for row in rows:
            row.unread = 0
        batch.newest = first
        if self.drafter is None:
            self._back(batch, list(range(len(rows))), seen)
        ids = torch.stack(columns, dim=1)
        chosen, finite = self._checked(batch, ids, uniforms)
        draft_keys = sum((step.keys_read for step in costs), np.zeros(len(rows)))
        check = self._check_cost(batch, seen, count)
        return Round(
            ids, ids[:, 1:].tolist(), chosen.tolist(), finite.tolist(), _summed([*costs, check]),
            draft_keys, check.keys_read, self._only_for_drafts(rows), self._bytes(batch),
        )  # fmt: skip

    def _only_for_drafts(self, rows: Sequence[Lane]) -> Any:
        """Bytes of more than the check reads, (B,)."""
        caches = [] if self.before is None else [self.before]
        if self.drafter is not None:
            caches += [self.drafter.cache, *self.drafter.copies]
        current = (StepCost.of(cache.row_stats()).bytes for cache in caches)
        return sum(current, np.zeros(len(rows)))

    def _back(self, batch: Batch, places: list[int], seen: list[int]) -> None:
        """Rows are as they were with so many tokens: cut, or copied from before the drafts."""
        if self.before is None:
            batch.cache.rewind(places, seen)
        elif places:
            batch.cache.replace_rows(places, self.before, places)

    def _forget_rest(self, batch: Batch, taken: Sequence[int], result: Round) -> None:
        """Cut the cache of each row behind the tokens that it took, but for the newest.

        Where a method cannot cut, these rows start from the copy and read their tokens again.
        """
        rows, cache = batch.rows, batch.cache
        lengths = [len(row.prompt_ids) + len(row.new_ids) - 1 for row in rows]
        if self.before is None:
            cache.rewind(range(len(rows)), lengths)
            if self.drafter is not None:
                self._follow(batch, self.drafter, taken, result)
            return
        short = [
            n for n, many in enumerate(taken)
            if many <= len(result.drafts[n]) and rows[n].finish is None
        ]  # fmt: skip
        self._back(batch, short, [])
        for many in sorted({taken[n] for n in short}):
            some = [n for n in short if taken[n] == many]
            part = cache.clone(some)
            ids = [[rows[n].new_ids[-many - 1 + at] for at in range(many)] for n in some]
            self._read(part, torch.tensor(ids, device=batch.newest.device), 1)
            alive = self._bytes(batch) + StepCost.of(self.before.row_stats()).bytes
            alive[some] += StepCost.of(part.row_stats()).bytes
            batch.ledger.reach(alive)
            cache.replace_rows(some, part)
            current = StepCost.of(part.row_stats())
            keys = np.array([lengths[n] for n in some], dtype=np.float64)
            again = self._priced(current, keys, cache.kv_heads)
            batch.ledger.add(again, some, steps=0)
            for n, read in zip(some, again.keys_read.tolist(), strict=True):
                rows[n].drafts["check_keys"] += read
        self.before = None

    def _follow(self, batch: Batch, drafter: Drafter, taken: Sequence[int], result: Round) -> None:
        """Let the drafter of each row that goes on have read the tokens that the row took."""
        going = [n for n, row in enumerate(batch.rows) if row.finish is None]
        behind = [n for n in going if taken[n] > len(result.drafts[n])]
        if behind:
            drafter.newest = result.ids[:, -1]
            self._decode(drafter)
            cost = StepCost.of(drafter.cache.row_stats()).select(behind)
            cost = cost._replace(bytes=cost.bytes + self._bytes(batch)[behind])
            batch.ledger.add(cost, behind, steps=0)
            for n, read in zip(behind, cost.keys_read.tolist(), strict=True):
                batch.rows[n].drafts["draft_keys"] += read
        drafter.go_back({n: taken[n] for n in going if n not in behind})

    @staticmethod
    def _bytes(batch: Batch) -> Any:
        """Held by its cache, (B,)."""
        return StepCost.of(batch.cache.row_stats()).bytes

    def _read(self, cache: AttentionCache, ids: Tensor, scored: int) -> Tensor:
        """Read tokens (B, T) under full attention; scores of the last `scored` of them."""
        positions = cache.seen[:, None] + torch.arange(ids.shape[1], device=ids.device)
        self.hidden.here_only()
        with cache.dense():
            output = self.model(
                input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True,
                logits_to_keep=scored,
            )  # fmt: skip
        logits: Tensor = output.logits
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

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
        if self.drafter is not None:
            current = current._replace(bytes=current.bytes + self._bytes(self.drafter))
        keys = np.array(seen, dtype=np.float64) + count + 1
        return self._priced(current, keys, batch.cache.kv_heads)

    @staticmethod
    def _priced(current: StepCost, keys: Any, kv_heads: int) -> StepCost:
        dense = None if current.dense_read_mean is None else keys
        return current._replace(
            keys_read=keys * kv_heads, read_mean=keys, dense_read_mean=dense, read_max=keys
        )

    def _take_some(self, batch: Batch, row: Lane, result: Round, planned: int) -> int:
        """Give a row its tokens, one by one, until one of them ends it; how many it took."""
        place = row.place
        row.drafts.update({
            "rounds": 1, "drafted": len(result.drafts[place]), "accepted": 0, "rejected": 0,
            "draft_keys": float(result.draft_keys[place]),
            "check_keys": float(result.check_keys[place]),
        })  # fmt: skip
        for name, current in (
            ("draft_bytes", result.draft_bytes),
            ("check_bytes", result.check_bytes),
        ):
            row.drafts[name] = max(row.drafts[name], int(current[place]))
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
            row.judge()
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
