"""A request under watch: which token it must take next, once a detector has had its verdict."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from attention.errors import InvalidValue
from lil.decoding.lane import Observers
from lil.detectors import Action, Detector, Verdict, cues_of, is_answering
from lil.serving.values import Stopping
from lil.thinking import closing, own_marks, state_behind
from lil.token_table import token_bytes


def log_verdict(log: logging.Logger, verdict: Mapping[str, object]) -> None:
    """Add a verdict of `Ending.see` to an engine's log, as JSON."""
    log.info("ended by a detector: %s", json.dumps(verdict))


class Words:
    """The served model's tokenizer, as detectors and cues need it."""

    def __init__(self, tokenizer: Any) -> None:
        self.table = token_bytes(tokenizer)
        self._tokenizer = tokenizer
        self._cues: dict[str, dict[str, list[int]]] = {}
        self.marks = own_marks(tokenizer)
        #: A penalty of requests with the ids of this tokenizer.
        self.bound = lru_cache(maxsize=4)(lambda penalty: penalty.with_tokens(self.table))

    def piece(self, token: int) -> bytes:
        """A token's bytes; embeddings may have more rows than there are tokens."""
        return self.table[token] if 0 <= token < len(self.table) else b""

    def text(self, tokens: Sequence[int]) -> bytes:
        return b"".join(map(self.piece, tokens))

    def cues(self, detector: Detector) -> dict[str, list[int]]:
        """The tokens that a detector's action gives the model to go on from, by their text."""
        cue, _ = detector.action.gives
        if cue not in self._cues:
            self._cues[cue] = cues_of(cue, self._tokenizer, self.table)
        return self._cues[cue]

    def check(self, detectors: Sequence[Detector]) -> None:
        """Check that detectors can fire, and be acted upon, with this tokenizer."""
        for detector in detectors:
            detector.require_tokens(self.table)
            self.cues(detector)


@dataclass(frozen=True)
class Limits:
    """Where a request ends by itself: after its least tokens, and at its most."""

    ends: frozenset[int]
    #: The token that is forced to end it; None where the engine ends it in another way.
    end: int | None
    least: int
    most: int


def end_of(stopping: Stopping, eos: int | None, stops: Sequence[int]) -> int | None:
    """The token that ends a request: `stop_on_token`, else `eos`, else a stop token, else None."""
    if stopping.token is not None and stopping.token not in stops:
        allowed = f"one of the request's own stop_token_ids: {sorted(stops) or 'it has none'}"
        raise InvalidValue("stop_on_token", stopping.token, allowed)
    return next((token for token in (stopping.token, eos, *stops) if token is not None), None)


class Ending:
    """Watches a request's tokens and tells which token must come next, if any.

    The rules are those of `lil.decode`: the end of text and the cap beat a verdict at the same
    token, a cue that is already there is not repeated, and a second verdict ends the request. Where
    `lil.decode` cuts, an engine forces the token that ends a request. Tokens that were generated
    before the verdict was read stay, and the cue follows them.
    """

    def __init__(self, stopping: Stopping, prompt: bytes, words: Words, limits: Limits) -> None:
        self.stopping, self.limits = stopping, limits
        #: Tokens that have been chosen behind those that `see` is shown next.
        self.lag = 0
        self._words, self._prompt = words, prompt
        self._observers: Observers | None = Observers(stopping.detectors, prompt)
        self._cues = {detector.action: words.cues(detector) for detector in stopping.detectors}
        self._pieces: list[bytes] = []
        self._cue: Sequence[int] = ()
        self._cue_start = 0
        self._most = limits.most
        #: The verdict that ended the request, in a few words; None while there is none.
        self.reason: str | None = None

    @property
    def seen(self) -> int:
        """Generated tokens that `see` was shown."""
        return len(self._pieces)

    def forced(self, generated: int) -> int | None:
        """The token that must follow `generated` tokens; None where the model chooses."""
        position = generated - self._cue_start
        if self.over(generated):
            return self.limits.end if generated >= self.limits.least else None
        return self._cue[position] if 0 <= position < len(self._cue) else None

    def over(self, generated: int) -> bool:
        """Whether the request is to end: by a verdict, or because its answer had its tokens."""
        return self.reason is not None or bool(self._cue and generated >= self._most)

    def see(self, tokens: Sequence[int]) -> dict[str, object] | None:
        """Look at the tokens since the last look; the verdict they bring, as the log has it."""
        verdict: tuple[Verdict, Action] | None = None
        for token in tokens:
            piece = self._words.piece(token)
            self._pieces.append(piece)
            if token in self.limits.ends or self.seen >= self.limits.most:
                self._observers = None  # the request ends here, whatever is forced
            if self._observers is not None and verdict is None and self.seen < self._most:
                verdict = self._observers.judge([piece])
        if self._observers is None or verdict is None or self.reason is not None:
            return None
        return self._act(self._observers, *verdict)

    def _act(self, observers: Observers, verdict: Verdict, action: Action) -> dict[str, object]:
        cue, tokens_after = action.gives
        text, cues = b"".join(self._pieces), self._cues.get(action, {})
        other = closing(cue, state_behind(self._prompt, text).opened, self._words.marks)
        cue = other if other in cues else cue
        if action.ends or is_answering(cue, self._prompt, text):
            self.reason = f"{verdict.detector} at token {self.seen}"
        else:
            assert tokens_after is not None
            self._cue, self._cue_start = cues[cue], self.seen + self.lag
            self._most = min(self._most, self._cue_start + len(self._cue) + tokens_after)
            if action.watched:
                observers.restart(self.seen, self._prompt + b"".join(self._pieces), cue)
            else:
                observers.stop(self.seen)
        return {
            "label": self.stopping.label,
            "detector": verdict.detector,
            "then": action.name if self.reason is None else "stop",
            "tokens": self.seen,
            # Below the cap and nothing else: nobody knows how long the text would have become.
            "tokens_below_cap": self.limits.most - self.seen,
            "evidence": dict(verdict.evidence),
        }
