"""What a penalty remembers of requests that come, go and change places at every step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attention.core import devices
from lil.compression.matching import EMPTY, Matcher
from lil.penalties import LZRows, Penalty, padded


@dataclass(eq=False)
class PenaltyRequest:
    """A request with a penalty. Equality is identity: a request that comes back is another."""

    penalty: Penalty


@dataclass(eq=False)
class HostRequest(PenaltyRequest):
    """A request with the tokens that its penalty looks at, which lie on the host."""

    prompt: Sequence[int]
    output: Sequence[int]


@dataclass
class PenaltyStep:
    """The B requests of a step, each of which has a row of the scores.

    `lengths` and `histories` are of the tokens that penalties look at; histories (B, n) of the
    requests at some indices are right-aligned with `EMPTY` before them. `newest` (B,) are the last
    tokens, read where they are new.
    """

    requests: list[Any]
    lengths: list[int]
    newest: Tensor
    histories: Callable[[Sequence[int]], Tensor]
    rows: list[int]

    def part(self, indices: list[int]) -> PenaltyStep:
        """The step of some of its requests."""
        return PenaltyStep(
            [self.requests[i] for i in indices],
            [self.lengths[i] for i in indices],
            self.newest[_index(indices, self.newest)],
            lambda some: self.histories([indices[i] for i in some]),
            [self.rows[i] for i in indices],
        )


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
        self, requests: list[HostRequest], rows: Sequence[int], scores: Tensor
    ) -> Tensor:
        """As `apply`, of requests whose tokens lie on the host."""
        newest = [request.output[-1] if len(request.output) else 0 for request in requests]

        def histories(indices: Sequence[int]) -> Tensor:
            some = [requests[i] for i in indices]
            return padded([[*request.prompt, *request.output] for request in some], scores.device)

        tokens = devices.put(newest, scores.device, torch.int64)
        lengths = [len(request.prompt) + len(request.output) for request in requests]
        return self.apply(PenaltyStep(requests, lengths, tokens, histories, [*rows]), scores)

    def apply(self, step: PenaltyStep, scores: Tensor) -> Tensor:
        """Scores (R, V) with the penalties of a step's requests, written in place."""
        if step.requests != self._requests:
            self._regroup(step.requests, scores.device)
        for group, indices in self._members:
            part = step if len(indices) == len(step.requests) else step.part(indices)
            scores = group.apply(part, scores)
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

    def apply(self, step: PenaltyStep, scores: Tensor) -> Tensor:
        """As `PenaltyRows.apply`, of requests that are all of this group."""
        pushed = step.newest
        # Nearly always: the requests of the last step with one token more each.
        lengths = [length + 1 for length in self._lengths]
        is_new = step.lengths == lengths and step.requests == self.requests
        if not is_new:
            step = step.part(self._follow(step, scores.shape[1]))
        self.requests, self._lengths = step.requests, step.lengths
        index = None if step.rows == [*range(scores.shape[0])] else _index(step.rows, scores)
        if isinstance(self._memory, LZRows):
            return self._memory.lower(scores, index, pushed if is_new else None)
        if is_new:
            self._memory = self._penalty.push(self._memory, pushed, None)
        if index is None:
            return self._penalty.apply(self._memory, scores)
        return scores.index_copy_(0, index, self._penalty.apply(self._memory, scores[index]))

    def _follow(self, step: PenaltyStep, vocabulary: int) -> list[int]:
        """Make the memory of this step; the requests' indices in its order."""
        at = {request: i for i, request in enumerate(step.requests)}
        stayed = [
            (row, at[request])
            for row, (request, before) in enumerate(zip(self.requests, self._lengths, strict=True))
            if request in at and step.lengths[at[request]] - before in (0, 1)
        ]
        grown = [step.lengths[i] > self._lengths[row] for row, i in stayed]
        indices = [i for _, i in stayed]
        fresh = sorted({*range(len(step.requests))} - {*indices})
        newest = step.newest[_index(indices, step.newest)]
        self._advance([row for row, _ in stayed], newest, grown)
        if fresh:
            penalties = [step.requests[i].penalty for i in fresh]
            begun = self._penalty.begin_each(penalties, step.histories(fresh), vocabulary)
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


def _index(indices: Sequence[int], like: Tensor) -> Tensor:
    return devices.put(list(indices), like.device, torch.int64)


def _joined(left: Any, right: Any) -> Any:
    if isinstance(left, (LZRows, Matcher)):
        return left.joined(right)
    width = max(left.shape[1], right.shape[1])
    pad = torch.nn.functional.pad
    return torch.cat([pad(x, (width - x.shape[1], 0), value=EMPTY) for x in (left, right)])
