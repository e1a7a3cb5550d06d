"""Rows that act at a given token: what the tests of actions share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import attention
import lil
from lil.actions import OnStop

PROMPTS = [[5, 6, 7], [9] * 12, [1, 2, 3, 4, 5, 6, 7, 8], [30]]
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
BACKENDS = [name for name in attention.names() if name != "full"]


def backend(name: str) -> attention.Backend:
    if name == "full":
        return attention.get("full")
    return attention.get(name, budget=24, **SMALL.get(name, {}))


@dataclass(frozen=True)
class At:
    """Fires at a token, having last seen information at `anchor`."""

    token: int
    on_stop: OnStop = "stop"
    anchor: int | None = None
    kept: int | None = None
    _seen: list[int] = field(default_factory=lambda: [0], init=False, compare=False)
    name: ClassVar[str] = "at"

    def params(self) -> dict[str, object]:
        return {"token": self.token}

    def clone(self) -> At:
        return replace(self)

    def start(self, prompt: bytes = b"") -> None:  # noqa: ARG002
        self._seen[:] = [0]

    def update(self, pieces: Sequence[bytes]) -> lil.Verdict | None:
        self._seen[0] += len(pieces)
        if self._seen[0] < self.token:
            return None
        kept = self.token if self.kept is None else self.kept
        return lil.Verdict(self.name, kept, {"step": self.token}, self.anchor)

    def returns(self) -> Sequence[int]:
        if self.anchor is not None and self._seen[0] >= self.anchor:
            return [self.anchor]
        if self.kept is not None and self._seen[0] >= self.kept:
            return [self.kept]
        return []


def run(model, tokenizer, detectors=(), **options) -> list[lil.Trace]:
    given = {"max_new_tokens": 70, "batch_size": 3, "check_every": 10} | options
    prompts = given.pop("prompts", PROMPTS)
    return lil.decode(model, tokenizer, prompts, detectors=list(detectors), **given)
