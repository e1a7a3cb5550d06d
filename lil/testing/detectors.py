"""What a detector must hold."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from attention.errors import InvalidValue
from attention.spec import merge
from attention.testing.broken import Breach, require
from lil.detectors import DETECTORS, Detector, Verdict, Watcher, replay
from lil.hidden_states import Reading
from lil.testing.declared import parameters
from lil.trace import Signal, Trace

#: It opens the thinking, where detectors are quickest.
PROMPT = b"Find the smallest such number.\n<think>\n"


class ReadingStandIn(NamedTuple):
    """A stand-in for `Reading`: one made-up hidden state behind every block, and margins of it."""

    state: Tensor

    def hidden(self, block: int) -> Tensor:
        """The hidden state, (hidden size,), another for each block."""
        return self.state.roll(block)

    def margin(self, token: bytes) -> float:
        """A made-up margin, from 0, another for each token."""
        return abs(float(self.state[len(token) % len(self.state)]))


def fresh_then_loop() -> list[bytes]:
    """200 fresh words, a blank line now and then, and a loop of seven, 1,000 tokens in all."""
    draw = random.Random(0)
    fresh = [b"\n\n" if i % 9 == 8 else b" %x" % draw.randrange(16**6) for i in range(200)]
    loop = [b" so", b" we", b" try", b" once", b" more", b".", b"\n\n"]
    return (fresh + loop * 115)[:1000]


class DetectorCase:
    """A detector and a generated text upon which it fires.

    Args:
        detector: with its parameters.
        text: the generated tokens; None: `fresh_then_loop`.
        hidden_size: of the hidden states handed to it.
    """

    def __init__(self, detector: Detector, text: Sequence[bytes] | None, hidden_size: int) -> None:
        self.detector, self.hidden_size = detector, hidden_size
        self.text = fresh_then_loop() if text is None else list(text)

    def step(self, watcher: Watcher[Any], at: int, text: Sequence[bytes]) -> None:
        """Token `at` of a text, and what the model computed there."""
        watcher.update([text[at]])
        self.look(watcher, at)

    def look(self, watcher: Watcher[Any], at: int) -> None:
        """What the model computed at token `at`, for a watcher that wants it."""
        if watcher.wants:
            numbers = torch.randn(self.hidden_size, generator=torch.Generator().manual_seed(at))
            watcher.see(cast("Reading", ReadingStandIn(numbers)))

    def live(self, text: Sequence[bytes]) -> Watcher[Any]:
        """A watcher that saw a text as it is decoded, token by token."""
        watcher = self.detector.watch(PROMPT)
        for at in range(len(text)):
            self.step(watcher, at, text)
        return watcher

    @cached_property
    def fired(self) -> tuple[Verdict, Mapping[str, Signal]]:
        """The verdict on the text, and the signals up to it."""
        watcher = self.live(self.text)
        if watcher.verdict is None:
            raise Breach(
                f"no verdict in {len(self.text)} tokens: check it with parameters by which it "
                "fires sooner, or give check() a `text` upon which it fires"
            )
        return watcher.verdict, watcher.seen()


def declared(case: DetectorCase) -> str:
    """Found by its path, a frozen dataclass, and the same again from its params() in JSON."""
    detector = case.detector
    said = parameters(DETECTORS, detector)
    try:
        parameter, values = type(detector).steps()
        for value in values:
            type(detector)(**merge(detector.params(), {parameter: value}, detector.aliases))
    except InvalidValue as error:
        raise Breach(f"of its `ladder`: {error}") from error
    return said


def evidence(case: DetectorCase) -> str:
    """The verdict says who gave it, when and why, in JSON."""
    verdict, _ = case.fired
    name, told = case.detector.name, verdict.evidence
    require(verdict.detector == name, f"the verdict is signed {verdict.detector!r}, not {name!r}")
    try:
        stored = json.loads(json.dumps(dict(told)))
    except TypeError as error:
        raise Breach(f"the evidence is not JSON: {error}") from error
    require(stored == told, f"evidence {told} comes back from JSON as {stored}")
    at = len(case.text)
    while (before := case.live(case.text[: at - 1])).verdict is not None:
        at = before.tokens
    step = told.get("step")
    require(step == at, f"evidence['step'] = {step!r}, but the verdict came with token {at}")
    places = (0, verdict.token if verdict.anchor is None else verdict.anchor, verdict.token, at)
    require(
        list(places) == sorted(places),
        f"anchor = {verdict.anchor}, token = {verdict.token}, step = {at}: none may be beyond the "
        "next",
    )
    return f"at token {at}: {', '.join(told)}"


def cuts(case: DetectorCase) -> str:
    """The verdict does not depend on how the tokens were cut into updates."""
    want, signals = case.fired
    for size in (1, 3, 64, len(case.text)):
        watcher = case.detector.watch(PROMPT)
        watcher.recall(signals)
        for at in range(0, len(case.text), size):
            watcher.update(case.text[at : at + size])
        got = watcher.verdict
        require(
            got == want,
            f"in updates of {size} tokens: {got}, one by one: {want}. Decide in `push`, token by "
            "token, and keep `update` as it is",
        )
    return "updates of 1, 3, 64 tokens and all at once"


def lasting(case: DetectorCase) -> str:
    """After a verdict, further updates give the same one."""
    watcher = case.live(case.text)
    want, _ = case.fired
    for more in ([b" and"], [], [b" other", b" words"] * 40):
        got = watcher.update(more)
        require(got == want, f"after the verdict, update() gives {got}, not {want}")
    return "the verdict stands"


def apart(case: DetectorCase) -> str:
    """Watchers of one detector, fed in turn, know nothing of each other."""
    want, _ = case.fired
    other = [b" %d" % (7 * i) for i in range(len(case.text))]
    alone = case.live(other).verdict
    here, there = case.detector.watch(PROMPT), case.detector.watch(PROMPT)
    for at in range(len(case.text)):
        case.step(here, at, case.text)
        case.step(there, at, other)
    for watcher, verdict in ((here, want), (there, alone)):
        require(
            watcher.verdict == verdict,
            f"beside another sequence: {watcher.verdict}, alone: {verdict}. Keep state in the "
            "watcher",
        )
    return "two sequences in turn, each as if alone"


def replayed(case: DetectorCase) -> str:
    """`lil.replay` of the stored trace gives the verdict that came live."""
    want, signals = case.fired
    n = len(case.text) + 1  # and eos
    trace = Trace(
        prompt_ids=(),
        new_ids=tuple(range(n)),
        prompt_bytes=PROMPT,
        pieces=(*case.text, b""),
        finish="eos",
        evidence=None,
        curve=(),
        checks=(),
        keys_kept_max=0,
        keys_read_max=None,
        keys_read_mean=None,
        dense_layer_keys_read_mean=None,
        cache_bytes_peak=0,
        prefill_sec=0.0,
        decode_sec=None,
        signals=signals,
    )
    stored = Trace.from_dict(json.loads(json.dumps(trace.to_dict())))
    detector = case.detector
    if not detector.action.ends:  # only a verdict that ends a generation is replayed
        detector = type(detector)(**{**detector.params(), "on_stop": "stop"})
    got = replay(stored, detector)
    require(got == want, f"replayed: {got}, live: {want}")
    return f"with the signals {', '.join(signals)}" if signals else "from the tokens alone"


def returns(case: DetectorCase) -> str:
    """Where an action goes back to, `returns` named from when it was the present token on."""
    actions = ["answer", *(["regenerate"] if case.detector.anchors else [])]
    return "; ".join(f"{action}: {_returned(case, action)}" for action in actions)


def _returned(case: DetectorCase, action: str) -> str:
    """Watch the text as the decode loop does, and see that the state gone back to is there."""
    detector = replace(case.detector, on_stop=action)
    other = DetectorCase(detector, case.text, case.hidden_size)
    watcher, held, most = detector.watch(PROMPT), set[int](), 0
    for at in range(len(case.text)):
        watcher.update([case.text[at]])
        verdict, now = watcher.verdict, at + 1
        if verdict is not None:
            place = verdict.anchor if action == "regenerate" else verdict.token
            if place is None:
                raise Breach("`anchors` is True, and the verdict has no anchor")
            state = max(place, 1)  # of none it is that of one: the prompt has been read
            require(
                state == now or state in held,
                f"with on_stop={action!r} the verdict goes back from token {now} to {place}, which "
                "`returns` did not name at every token from the one at which it was the newest: "
                f"return [{place}] from token {place} on, and keep it until another takes its "
                "place",
            )
            return f"from {now} to {place}, at most {most} states kept"
        named: object = watcher.returns()
        if not isinstance(named, Collection) or not all(type(one) is int for one in named):
            allowed = "a tuple or list of numbers of tokens, () for none"
            raise Breach(f"returns() gave {named!r} after token {now}: expected {allowed}")
        wanted = {max(one, 1) for one in named}
        held = (held & wanted) | (wanted & {now})
        most = max(most, len(held))
        other.look(watcher, at)
    return "no verdict"


DETECTOR_CHECKS: Mapping[str, Callable[[DetectorCase], str]] = {
    "declared": declared,
    "evidence": evidence,
    "cuts": cuts,
    "lasting": lasting,
    "apart": apart,
    "replayed": replayed,
    "returns": returns,
}
