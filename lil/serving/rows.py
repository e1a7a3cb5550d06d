"""What a penalty remembers of requests that come, go and change places at every step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from attention.core import devices
from attention.errors import InvalidValue
from lil.compression.matching import EMPTY, Matcher
from lil.penalties import LZRows, Penalty


class PenaltyRequest(Protocol):
    """A request with a penalty; equal to itself alone, so that one that comes back is another."""

    @property
    def penalty(self) -> Penalty: ...


class PenaltyRows:
    """What penalties remember of the requests that asked for them, each with its own parameters.

    A request that has one token more than at the last step, or as many, costs a push; one that is
    new, or that an engine took back and gave again, is computed from its history, which gives the
    same numbers. Rows that left are forgotten. Penalties of one company are computed together.
    """

    def __init__(self) -> None:
        self._companies: dict[Hashable, Company] = {}
        self._requests: list[PenaltyRequest] = []
        self._members: list[tuple[Company, list[int]]] = []  # indices of the requests of each

    def __len__(self) -> int:
        return sum(map(len, self._companies.values()))

    @property
    def nbytes(self) -> int:
        """Bytes of what is remembered."""
        return sum(one.nbytes for one in self._companies.values())

    def apply(
        self,
        requests: Sequence[PenaltyRequest],
        lengths: Sequence[int],
        newest: Tensor,
        histories: Callable[[Sequence[int]], Tensor],
        places: Sequence[int],
        scores: Tensor,
    ) -> Tensor:
        """Scores with the penalties of some rows.

        Args:
            requests: of this step, B of them, none twice.
            lengths: tokens of each one's history.
            newest: (B,), the last token of each; looked at where it is new.
            histories: gives whole histories, right-aligned with `EMPTY` before short ones, of the
                requests at these indices.
            places: of each request, its row in the scores.
            scores: (rows, V), raw; those rows are written.
        """
        if list(requests) != self._requests:
            self._gather(requests, scores.device)
        for company, which in self._members:
            if len(which) == len(requests):
                return company.apply(requests, lengths, newest, histories, places, scores)

            def some(these: Sequence[int], of: Sequence[int] = which) -> Tensor:
                return histories([of[i] for i in these])

            scores = company.apply(
                [requests[i] for i in which],
                [lengths[i] for i in which],
                newest[_index(which, newest)],
                some,
                [places[i] for i in which],
                scores,
            )
        return scores

    def _gather(self, requests: Sequence[PenaltyRequest], device: torch.device) -> None:
        """The companies of this step's requests."""
        members: dict[Hashable, list[int]] = {}
        for i, request in enumerate(requests):
            members.setdefault(request.penalty.company(device), []).append(i)
        self._companies = {
            key: self._companies.get(key) or Company(requests[which[0]].penalty)
            for key, which in members.items()
        }
        self._members = [(self._companies[key], which) for key, which in members.items()]
        self._requests = list(requests)


class Company:
    """Requests whose penalties one memory serves.

    Args:
        penalty: of one of them; scores are written in place.
    """

    def __init__(self, penalty: Penalty) -> None:
        self._penalty = penalty.in_place()
        self._requests: list[PenaltyRequest] = []  # in the memory's order
        self._lengths: list[int] = []  # tokens of each
        self._memory: Any = None

    def __len__(self) -> int:
        return len(self._requests)

    def __bool__(self) -> bool:
        return True

    @property
    def nbytes(self) -> int:
        """Bytes of what is remembered."""
        return 0 if self._memory is None else self._memory.nbytes

    def apply(
        self,
        requests: Sequence[PenaltyRequest],
        lengths: Sequence[int],
        newest: Tensor,
        histories: Callable[[Sequence[int]], Tensor],
        places: Sequence[int],
        scores: Tensor,
    ) -> Tensor:
        """As `PenaltyRows.apply`, of one or more requests that are all of this company."""
        rows = list(places)
        pushed: Tensor | None = newest
        if [length - 1 for length in lengths] == self._lengths and list(requests) == self._requests:
            # Nearly always: those of the last step with a token more each.
            self._lengths = list(lengths)
        else:
            order = self._follow(requests, lengths, newest, histories, scores.shape[1])
            self._requests = [requests[i] for i in order]
            self._lengths = [lengths[i] for i in order]
            rows, pushed = [places[i] for i in order], None
        index = None if rows == list(range(scores.shape[0])) else _index(rows, scores)
        if isinstance(self._memory, LZRows):
            return self._memory.lower(scores, index, pushed)
        if pushed is not None:
            self._memory = self._penalty.push(self._memory, pushed, None)
        if index is None:
            return self._penalty.apply(self._memory, scores)
        return scores.index_copy_(0, index, self._penalty.apply(self._memory, scores[index]))

    def _follow(
        self,
        requests: Sequence[PenaltyRequest],
        lengths: Sequence[int],
        newest: Tensor,
        histories: Callable[[Sequence[int]], Tensor],
        vocabulary: int,
    ) -> Sequence[int]:
        """The memory of this step; the requests' indices in its order."""
        at = {request: i for i, request in enumerate(requests)}
        kept = [
            (row, at[request])
            for row, (request, before) in enumerate(zip(self._requests, self._lengths, strict=True))
            if request in at and lengths[at[request]] - before in (0, 1)
        ]
        grown = [lengths[i] > self._lengths[row] for row, i in kept]
        stayed = [i for _, i in kept]
        fresh = sorted({*range(len(requests))} - {*stayed})
        self._advance([row for row, _ in kept], newest[_index(stayed, newest)], grown)
        if fresh:
            penalties = [requests[i].penalty for i in fresh]
            begun = self._penalty.begin_each(penalties, histories(fresh), vocabulary)
            self._memory = begun if not kept else _joined(self._memory, begun)
        return stayed + fresh

    def _advance(self, rows: Sequence[int], newest: Tensor, grown: Sequence[bool]) -> None:
        """The memory of these rows, with their newest token where there is one."""
        if not rows:
            self._memory = None
            return
        if list(rows) != list(range(len(self._requests))):
            index = _index(rows, newest)
            if isinstance(self._memory, LZRows):
                self._memory = self._memory.rows(rows, index)
            elif isinstance(self._memory, Matcher):
                # Those that left may have been the longest.
                longest = max(self._lengths[row] for row in rows)
                self._memory = self._memory.rows(index).cropped(longest)
            else:
                self._memory = _tensor(self._memory)[index]
        if any(grown):
            live = None if all(grown) else devices.put(list(grown), newest.device)
            self._memory = self._penalty.push(self._memory, newest, live)


def padded(histories: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Histories (B, n), right-aligned with `EMPTY` before short ones."""
    most = max(map(len, histories))
    rows = [[EMPTY] * (most - len(history)) + list(history) for history in histories]
    return devices.put(rows, device, torch.int64)


def _index(of: Sequence[int], like: Tensor) -> Tensor:
    return devices.put(list(of), like.device, torch.int64)


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, (LZRows, Matcher)):
        return first.joined(second)
    one, two = _tensor(first), _tensor(second)
    places = max(one.shape[1], two.shape[1])
    pad = torch.nn.functional.pad
    return torch.cat(
        [pad(memory, (places - memory.shape[1], 0), value=EMPTY) for memory in (one, two)]
    )


def _tensor(memory: Any) -> Tensor:
    """A memory that is the tokens themselves.

    Raises:
        InvalidValue: another one, of which nobody here knows what its rows are.
    """
    if not isinstance(memory, Tensor):
        kind = type(memory).__name__
        raise InvalidValue("penalty", kind, "one that remembers tokens or a lil Matcher")
    return memory
