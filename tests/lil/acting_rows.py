"""Detectors that act at a given token, or note what they see; and what watchers read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from tiny_models import PROMPTS

import attention
import lil
from lil.detectors import OnStop, action

CUE = " Anna has word7"
CUE_IDS = [2, 3, 14]
SMALL = {
    "sink": {"sinks": 2},
    "quest": {"page": 4, "dense_layers": 1},
    "infllm": {"n_init": 2, "block": 4, "n_local": 10},
    "raas": {"page": 4},
    "rkv": {"window": 4},
    "snapkv": {},
}


def backend(name: str) -> attention.Backend:
    if name in ("full", "noise"):
        return attention.get(name)
    return attention.get(name, budget=24, **SMALL.get(name, {}))


@dataclass(frozen=True)
class At(lil.Detector):
    """Fires at a token, having last seen information at `anchor`."""

    token: int
    anchor: int | None = None
    cut: int | None = None
    name: ClassVar[str] = "at"
    anchors: ClassVar[bool] = True

    def watch(self, prompt: bytes = b"") -> Counting:  # noqa: ARG002
        return Counting(self)


def fires(
    token: int,
    on_stop: OnStop = "stop",
    anchor: int | None = None,
    cut: int | None = None,
    second: str = "nothing",
) -> At:
    what = action(on_stop)
    if not what.ends:
        what = replace(what, second=second)
    return At(token, anchor, cut, on_stop=what)


class Counting(lil.Watcher[At]):
    def push(self, piece: bytes) -> lil.Verdict | None:  # noqa: ARG002
        at = self.detector
        if self.tokens < at.token:
            return None
        cut = at.token if at.cut is None else at.cut
        return lil.Verdict("at", cut, {"step": at.token}, at.anchor)

    def returns(self) -> Sequence[int]:
        for place in (self.detector.anchor, self.detector.cut):
            if place is not None:
                return [place] if self.tokens >= place else []
        return []


@dataclass(frozen=True)
class Seeing(At):
    """Notes the prompt and the tokens of each row in `log`."""

    token: int = 10**9
    log: list[list[bytes]] = field(default_factory=list, compare=False)

    def watch(self, prompt: bytes = b"") -> Noting:
        self.log.append([prompt])
        return Noting(self)


class Noting(Counting):
    def __init__(self, detector: Seeing) -> None:
        super().__init__(detector)
        self.row = detector.log[-1]

    def push(self, piece: bytes) -> lil.Verdict | None:
        self.row.append(piece)
        return super().push(piece)


class Read:
    """What a model read at a token: a block's hidden state, and a margin."""

    def __init__(self, state: Sequence[float] = (), margin: float = 0.0, block: int = -1) -> None:
        self.state, self.known, self.block = torch.tensor(state), margin, block

    def hidden(self, block: int) -> torch.Tensor:
        assert block == self.block
        return self.state

    def margin(self, token: bytes) -> float:
        assert token == b"</think>"
        return self.known


def live(
    watcher: lil.Watcher, pieces: Sequence[bytes], reads: Sequence[Read | None]
) -> lil.Verdict | None:
    """Token by token; what was read at each token is offered where it is wanted."""
    for piece, read in zip(pieces, reads, strict=True):
        verdict = watcher.update([piece])
        if verdict is not None:
            return verdict
        if watcher.wants:
            watcher.see(read)
        assert not watcher.wants
    return None


def run(model, tokenizer, detectors=(), **options) -> list[lil.Trace]:
    settings = {"max_new_tokens": 70, "batch_size": 3, "check_every": 10} | options
    prompts = settings.pop("prompts", PROMPTS)
    return lil.decode(model, tokenizer, prompts, detectors=list(detectors), **settings)
