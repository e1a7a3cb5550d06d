"""One request under watch: what it is given next, once a detector has had its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attention.errors import InvalidValue
from lil.decoding.lane import Observers
from lil.detectors import Action, Detector, Verdict, cue_ids, is_answering
from lil.serving.values import Stopping
from lil.token_table import token_bytes


class Words:
    """A tokenizer as detectors and cues need it.

    Args:
        tokenizer: of the model that is served.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.table = token_bytes(tokenizer)
        self._tokenizer = tokenizer
        self._cues: dict[str, list[int]] = {}

    def piece(self, token: int) -> bytes:
        """A token's bytes; embeddings may have more rows than there are tokens."""
        return self.table[token] if 0 <= token < len(self.table) else b""

    def text(self, tokens: Sequence[int]) -> bytes:
        """The bytes of tokens, joined."""
        return b"".join(map(self.piece, tokens))

    def cue(self, detector: Detector) -> list[int]:
        """The tokens of what a detector's action gives the model to go on from.

        Raises:
            InvalidValue: a cue with words that the tokenizer does not have.
        """
        cue, _ = detector.action.gives
        if cue not in self._cues:
            self._cues[cue] = cue_ids(detector.action, self._tokenizer, self.table)
        return self._cues[cue]

    def check(self, detectors: Sequence[Detector]) -> None:
        """Refuse detectors that could never fire, or be acted upon, with this tokenizer.

        Raises:
            InvalidValue: one of them.
        """
        for detector in detectors:
            detector.require_tokens(self.table)
            self.cue(detector)


@dataclass(frozen=True)
class Limits:
    """Where a request ends by itself.

    Args:
        ends: tokens that end it.
        end: the one that is forced to end it; None where the engine is told instead.
        least: tokens before which it must not end.
        most: tokens at which its engine ends it.
    """

    ends: frozenset[int]
    end: int | None
    least: int
    most: int


def end_of(stopping: Stopping, eos: int | None, stops: Sequence[int]) -> int | None:
    """The token that ends a request; None where none does.

    Args:
        stopping: what was asked for.
        eos: the token at which the engine ends it, None where it does not.
        stops: further ones.

    Raises:
        InvalidValue: `stop_on_token` is none of its stop tokens.
    """
    if stopping.token is not None and stopping.token not in stops:
        allowed = f"one of the request's own stop_token_ids: {sorted(stops) or 'it has none'}"
        raise InvalidValue("stop_on_token", stopping.token, allowed)
    return next((one for one in (stopping.token, eos, *stops) if one is not None), None)


class Ending:
    """Watches a request's tokens and says which one must come next, if one must.

    As `lil.decode`: the end of text beats a verdict at the same token, so does the cap, a cue that
    stands there already is not given again, and a second verdict ends the request. Where
    `lil.decode` cuts, an engine is given the token that ends a request. What was generated before
    its verdict was read stays, and the cue comes behind it.

    Args:
        stopping: what was asked for.
        prompt: the request's text before the first generated token.
        words: of the model.
        limits: where it ends by itself.
    """

    def __init__(self, stopping: Stopping, prompt: bytes, words: Words, limits: Limits) -> None:
        self.stopping, self.limits = stopping, limits
        #: Tokens that have been chosen behind those that `see` is shown next.
        self.lag = 0
        self._words, self._prompt = words, prompt
        self._observers: Observers | None = Observers(stopping.detectors, prompt)
        self._cues = {one.action: words.cue(one) for one in stopping.detectors}
        self._pieces: list[bytes] = []
        self._cue: Sequence[int] = ()
        self._cue_from = 0
        self._most = limits.most
        #: The verdict that ended the request, in a few words; None while none has.
        self.reason: str | None = None

    @property
    def seen(self) -> int:
        """Generated tokens that it has been shown."""
        return len(self._pieces)

    def forced(self, generated: int) -> int | None:
        """The token that must come next, None for whatever the model wants.

        Args:
            generated: tokens there are, those among them that have not been shown.
        """
        cued = generated - self._cue_from
        if self.over(generated):
            return self.limits.end if generated >= self.limits.least else None
        return self._cue[cued] if 0 <= cued < len(self._cue) else None

    def over(self, generated: int) -> bool:
        """Whether the request is to end: a verdict, or an answer that has had its tokens."""
        return self.reason is not None or bool(self._cue and generated >= self._most)

    def see(self, tokens: Sequence[int]) -> dict[str, object] | None:
        """Look at the next tokens; the verdict they bring, as a log has it.

        Args:
            tokens: those generated since the last look.
        """
        found: tuple[Verdict, Action] | None = None
        for token in tokens:
            piece = self._words.piece(token)
            self._pieces.append(piece)
            if token in self.limits.ends or self.seen >= self.limits.most:
                self._observers = None  # over, whatever is forced
            if self._observers is not None and found is None and self.seen < self._most:
                found = self._observers.judge(piece)
        if self._observers is None or found is None or self.reason is not None:
            return None
        verdict, action = found
        cue, tokens_after = action.gives
        if action.ends or is_answering(cue, self._prompt, b"".join(self._pieces)):
            self.reason = f"{verdict.detector} at token {self.seen}"
        else:
            assert tokens_after is not None
            self._cue, self._cue_from = self._cues[action], self.seen + self.lag
            self._most = min(self._most, self._cue_from + len(self._cue) + tokens_after)
            if action.watched:
                self._observers.again(self.seen, self._prompt + b"".join(self._pieces), cue)
            else:
                self._observers.off(self.seen)
        return {
            "label": self.stopping.label,
            "detector": verdict.detector,
            "then": action.name if self.reason is None else "stop",
            "tokens": self.seen,
            # Of the cap, and of nothing else: nobody knows how long it would have gone on.
            "tokens_below_cap": self.limits.most - self.seen,
            "evidence": dict(verdict.evidence),
        }
