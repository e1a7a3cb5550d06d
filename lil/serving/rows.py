"""What a penalty remembers of requests that come, go and change places at every step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from attention.core import devices
from lil.compression.matching import EMPTY, Matcher
from lil.penalties import LZRows, Penalty

#: Whole histories (B, n) of the requests at these indices, right-aligned with `EMPTY` before them.
Histories = Callable[[Sequence[int]], Tensor]


class PenaltyRequest(Protocol):
    """A request with a penalty. Equality is identity: a request that comes back is another."""

    @property
    def penalty(self) -> Penalty: ...


@dataclass(eq=False)
class HostRequest:
    """A `PenaltyRequest` with the tokens that its penalty looks at, which lie on the host."""

    penalty: Penalty
    prompt: Sequence[int]
    output: Sequence[int]


class PenaltyRows:
    """What penalties remember of the requests that asked for them, each with its own parameters.

    A request that has one token more than at the last step, or as many, costs a push. What is new,
    or was put back by an engine, is computed from its history, which gives the same numbers.
    """

    def __init__(self) -> None:
        self._groups: dict[Hashable, PenaltyGroup] = {}
        self._requests: list[PenaltyRequest] = []
        self._members: list[tuple[PenaltyGroup, list[int]]] = []  # indices of requests

    def __len__(self) -> int:
        return sum(len(group.requests) for group in self._groups.values())

    def apply_on_host(
        self, requests: Sequence[HostRequest], rows: Sequence[int], scores: Tensor
    ) -> Tensor:
        """As `apply`, of requests whose tokens lie on the host."""
        newest = [request.output[-1] if len(request.output) else 0 for request in requests]

        def histories(indices: Sequence[int]) -> Tensor:
            some = [requests[i] for i in indices]
            return padded([[*request.prompt, *request.output] for request in some], scores.device)

        lengths = [len(request.prompt) + len(request.output) for request in requests]
        tokens = devices.put(newest, scores.device, torch.int64)
        return self.apply(requests, lengths, tokens, histories, rows, scores)

    def apply(
        self,
        requests: Sequence[PenaltyRequest],
        lengths: Sequence[int],
        newest: Tensor,
        histories: Histories,
        rows: Sequence[int],
        scores: Tensor,
    ) -> Tensor:
        """Scores (R, V) with the penalties of B requests, written in place into their rows.

        `lengths` are of their histories, and `newest` (B,) are their last tokens.
        """
        if list(requests) != self._requests:
            self._regroup(requests, scores.device)
        for group, indices in self._members:
            if len(indices) == len(requests):
                return group.apply(requests, lengths, newest, histories, rows, scores)

            def of_group(some: Sequence[int], indices: Sequence[int] = indices) -> Tensor:
                return histories([indices[i] for i in some])

            scores = group.apply(
                [requests[i] for i in indices],
                [lengths[i] for i in indices],
                newest[_index(indices, newest)],
                of_group,
                [rows[i] for i in indices],
                scores,
            )
        return scores

    def _regroup(self, requests: Sequence[PenaltyRequest], device: torch.device) -> None:
        members: dict[Hashable, list[int]] = {}
        for i, request in enumerate(requests):
            members.setdefault(request.penalty.company(device), []).append(i)
        self._groups = {
            key: self._groups.get(key) or PenaltyGroup(requests[indices[0]].penalty)
            for key, indices in members.items()
        }
        self._members = [(self._groups[key], indices) for key, indices in members.items()]
        self._requests = list(requests)


class PenaltyGroup:
    """Requests whose penalties are computed together; their parameters may differ."""

    def __init__(self, penalty: Penalty) -> None:
        self._penalty = penalty.in_place()
        self.requests: list[PenaltyRequest] = []  # in the memory's order
        self._lengths: list[int] = []
        self._memory: Any = None

    def apply(
        self,
        requests: Sequence[PenaltyRequest],
        lengths: Sequence[int],
        newest: Tensor,
        histories: Histories,
        rows: Sequence[int],
        scores: Tensor,
    ) -> Tensor:
        """As `PenaltyRows.apply`, of requests that are all of this group."""
        rows, pushed = list(rows), newest
        if [length - 1 for length in lengths] == self._lengths and list(requests) == self.requests:
            # Nearly always: the requests of the last step with one token more each.
            self._lengths = list(lengths)
            is_new = True
        else:
            order = self._follow(requests, lengths, newest, histories, scores.shape[1])
            self.requests = [requests[i] for i in order]
            self._lengths = [lengths[i] for i in order]
            rows, is_new = [rows[i] for i in order], False
        index = None if rows == list(range(scores.shape[0])) else _index(rows, scores)
        if isinstance(self._memory, LZRows):
            return self._memory.lower(scores, index, pushed if is_new else None)
        if is_new:
            self._memory = self._penalty.push(self._memory, pushed, None)
        if index is None:
            return self._penalty.apply(self._memory, scores)
        return scores.index_copy_(0, index, self._penalty.apply(self._memory, scores[index]))

    def _follow(
        self,
        requests: Sequence[PenaltyRequest],
        lengths: Sequence[int],
        newest: Tensor,
        histories: Histories,
        vocabulary: int,
    ) -> list[int]:
        """Make the memory of this step; the requests' indices in its order."""
        at = {request: i for i, request in enumerate(requests)}
        stayed = [
            (row, at[request])
            for row, (request, before) in enumerate(zip(self.requests, self._lengths, strict=True))
            if request in at and lengths[at[request]] - before in (0, 1)
        ]
        grown = [lengths[i] > self._lengths[row] for row, i in stayed]
        indices = [i for _, i in stayed]
        fresh = sorted({*range(len(requests))} - {*indices})
        self._advance([row for row, _ in stayed], newest[_index(indices, newest)], grown)
        if fresh:
            penalties = [requests[i].penalty for i in fresh]
            begun = self._penalty.begin_each(penalties, histories(fresh), vocabulary)
            self._memory = _joined(self._memory, begun) if stayed else begun
        return indices + fresh

    def _advance(self, rows: Sequence[int], newest: Tensor, grown: Sequence[bool]) -> None:
        """Reduce the memory to these rows, and push the newest token of those that have grown."""
        if not rows:
            self._memory = None
            return
        if list(rows) != list(range(len(self.requests))):
            index = _index(rows, newest)
            if isinstance(self._memory, LZRows):
                self._memory = self._memory.rows(rows, index)
            elif isinstance(self._memory, Matcher):
                # The rows that left may have been the longest.
                longest = max(self._lengths[row] for row in rows)
                self._memory = self._memory.rows(index).cropped(longest)
            else:
                self._memory = self._memory[index]
        if any(grown):
            live = None if all(grown) else devices.put(list(grown), newest.device)
            self._memory = self._penalty.push(self._memory, newest, live)


def padded(histories: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Histories (B, n), right-aligned with `EMPTY` before short ones."""
    longest = max(map(len, histories))
    rows = [[EMPTY] * (longest - len(history)) + list(history) for history in histories]
    return devices.put(rows, device, torch.int64)


def _index(indices: Sequence[int], like: Tensor) -> Tensor:
    return devices.put(list(indices), like.device, torch.int64)


def _joined(left: Any, right: Any) -> Any:
    if isinstance(left, (LZRows, Matcher)):
        return left.joined(right)
    width = max(left.shape[1], right.shape[1])
    pad = torch.nn.functional.pad
    return torch.cat([pad(x, (width - x.shape[1], 0), value=EMPTY) for x in (left, right)])
