"""Checks that a new detector or penalty keeps the contract of `lil`.

from lil.testing import check
check(MyDetector(tokens=40))

The library itself imports nothing of this.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from attention.errors import InvalidValue
from attention.registry import Registry
from attention.spec import merge
from attention.testing import ContractBroken
from attention.testing.broken import Breach, require, require_aliases, run
from lil.detectors import DETECTORS, Detector, Verdict, Watcher, replay
from lil.detectors.base.asking import Trial
from lil.hidden_states import Reading
from lil.penalties import PENALTIES, Penalty
from lil.trace import Signal, Trace

__all__ = ["CHECKS", "ContractBroken", "check"]

#: It opens the thinking, where detectors are quickest.
PROMPT = b"Find the smallest such number.\n<think>\n"


def check(
    thing: Detector | Penalty,
    *,
    skip: Iterable[str] = (),
    text: Sequence[bytes] | None = None,
    hidden_size: int = 64,
) -> dict[str, str]:
    """Check that a detector or a penalty keeps its contract, on made-up texts.

    Args:
        thing: with its parameters.
        skip: names of checks, of `CHECKS` for this kind, that are broken on purpose.
        text: bytes of generated tokens upon which a detector fires; by default 200 fresh tokens and
            a loop of seven, 1,000 in all.
        hidden_size: of the made-up hidden states that a detector reads.

    Returns:
        The result of each check, by its name.

    Raises:
        ContractBroken: a check fails; it says what is wrong.
        InvalidValue: it is neither, `skip` names no check, or `text` is no list of bytes.
    """
    if isinstance(thing, Detector):
        pieces = fresh_then_loop() if text is None else list(text)
        if not all(isinstance(piece, bytes) for piece in pieces):
            raise InvalidValue("text", text, "a list with the bytes of each token")
        case = DetectorCase(thing, pieces, hidden_size)
        return run(thing.name, CHECKS["detector"], case, skip)
    if isinstance(thing, Penalty):
        return run(thing.name, CHECKS["penalty"], thing, skip)
    raise InvalidValue("thing", thing, "a Detector or a Penalty")


def _declared(registry: Registry[Any], thing: Any) -> str:
    """The registry finds it by its path, and params() in JSON make it again."""
    kind = type(thing)
    if "<locals>" not in kind.__qualname__ and kind.__module__ != "__main__":
        registry.find(f"{kind.__module__}:{kind.__qualname__}")
    require_aliases(kind)
    params = thing.params()
    try:
        stored = json.loads(json.dumps(params))
        again = kind(**stored).params()
    except TypeError as error:
        raise Breach(f"params() does not survive JSON: {error}") from error
    reason = f"params() = {params} make one with params() = {again}: name all, as JSON has them"
    require(again == params == stored, reason)
    return ", ".join(f"{k}={v!r}" for k, v in params.items()) or "no parameters"


class MadeUpReading(NamedTuple):
    """A `Reading` of a made-up hidden state, another for each block, and margins of it."""

    state: Tensor

    def hidden(self, block: int) -> Tensor:
        return self.state.roll(block)

    def margin(self, token: bytes) -> float:
        return abs(float(self.state[len(token) % len(self.state)]))


def fresh_then_loop() -> list[bytes]:
    """200 fresh words, a blank line now and then, and a loop of seven, 1,000 tokens in all."""
    draw = random.Random(0)
    fresh = [b"\n\n" if i % 9 == 8 else b" %x" % draw.randrange(16**6) for i in range(200)]
    loop = [b" so", b" we", b" try", b" once", b" more", b".", b"\n\n"]
    return (fresh + loop * 115)[:1000]


class DetectorCase(NamedTuple):
    """A detector, a generated text upon which it fires, and the size of hidden states."""

    detector: Detector
    text: list[bytes]
    hidden_size: int

    def look(self, watcher: Watcher[Any], at: int) -> None:
        """Show what the model computed at token `at`, or would answer, to who wants it."""
        for asking in watcher.asking():
            asking.hear(Trial(asking.detector, [], b"7", [-0.01 / (at + 1)], [1 / (at + 1)]))
        if watcher.wants:
            numbers = torch.randn(self.hidden_size, generator=torch.Generator().manual_seed(at))
            watcher.see(cast("Reading", MadeUpReading(numbers)))

    def step(self, watcher: Watcher[Any], at: int, text: Sequence[bytes]) -> None:
        """Show token `at` of a text, and what the model computed there."""
        watcher.update([text[at]])
        self.look(watcher, at)

    def live(self, text: Sequence[bytes]) -> Watcher[Any]:
        """A watcher that saw a text token by token."""
        watcher = self.detector.watch(PROMPT)
        for at in range(len(text)):
            self.step(watcher, at, text)
        return watcher

    def fired(self) -> tuple[Verdict, Mapping[str, Signal]]:
        """The verdict on the text, and the signals up to it."""
        watcher = self.live(self.text)
        if watcher.verdict is None:
            reason = f"no verdict in {len(self.text)} tokens: give check() a `text` upon which it"
            raise Breach(f"{reason} fires, or parameters by which it fires sooner")
        return watcher.verdict, watcher.seen()


def _detector_declared(case: DetectorCase) -> str:
    detector, kind = case.detector, type(case.detector)
    params = _declared(DETECTORS, detector)
    try:
        parameter, values = kind.steps()
        for value in values:
            kind(**merge(detector.params(), {parameter: value}, kind.aliases))
    except InvalidValue as error:
        raise Breach(f"of its `ladder`: {error}") from error
    return params


def _evidence(case: DetectorCase) -> str:
    """The verdict names the detector, the token and its evidence, in JSON, and stays."""
    verdict, _ = case.fired()
    name, evidence = case.detector.name, verdict.evidence
    require(verdict.detector == name, f"the verdict is signed {verdict.detector!r}, not {name!r}")
    try:
        stored = json.loads(json.dumps(dict(evidence)))
    except TypeError as error:
        raise Breach(f"the evidence is not JSON: {error}") from error
    require(stored == evidence, f"evidence {evidence} comes back from JSON as {stored}")
    watcher, at = case.detector.watch(PROMPT), 0
    while watcher.verdict is None:
        case.step(watcher, at, case.text)
        at += 1
    step = evidence.get("step")
    require(step == at, f"evidence['step'] = {step!r}, but the verdict came with token {at}")
    places = [0, verdict.token if verdict.anchor is None else verdict.anchor, verdict.token, at]
    reason = f"anchor = {verdict.anchor}, token = {verdict.token}, step = {at} do not ascend"
    require(places == sorted(places), reason)
    again = watcher.update([b" and", b" more"])
    require(again == verdict, f"after the verdict, update() gives {again}, not {verdict}")
    return f"at token {at}: {', '.join(evidence)}"


def _cuts(case: DetectorCase) -> str:
    """The verdict does not depend on how the tokens were cut into updates."""
    want, signals = case.fired()
    for size in (1, 3, 64, len(case.text)):
        watcher = case.detector.watch(PROMPT)
        watcher.recall(signals)
        for at in range(0, len(case.text), size):
            watcher.update(case.text[at : at + size])
        reason = f"in updates of {size} tokens: {watcher.verdict}, one by one: {want}"
        require(watcher.verdict == want, f"{reason}. Decide in `push`, token by token")
    return "updates of 1, 3, 64 tokens and all at once"


def _alone(case: DetectorCase) -> str:
    """Watchers of one detector, fed in turn, know nothing of each other."""
    want, _ = case.fired()
    other = [b" %d" % (7 * i) for i in range(len(case.text))]
    expected = case.live(other).verdict
    left, right = case.detector.watch(PROMPT), case.detector.watch(PROMPT)
    for at in range(len(case.text)):
        case.step(left, at, case.text)
        case.step(right, at, other)
    for watcher, verdict in ((left, want), (right, expected)):
        reason = f"in turn with another sequence: {watcher.verdict}, alone: {verdict}"
        require(watcher.verdict == verdict, f"{reason}. Keep state in the watcher")
    return "two sequences in turn, each as if alone"


def _replayed(case: DetectorCase) -> str:
    """`lil.replay` of the stored trace gives the verdict that came live."""
    want, signals = case.fired()
    trace = Trace(
        prompt_ids=(), new_ids=tuple(range(len(case.text) + 1)), prompt_bytes=PROMPT,
        pieces=(*case.text, b""), finish="eos", evidence=None, curve=(), checks=(),
        keys_kept_max=0, keys_read_max=None, keys_read_mean=None, dense_layer_keys_read_mean=None,
        cache_bytes_peak=0, prefill_sec=0.0, decode_sec=None, signals=signals,
    )  # fmt: skip
    stored = Trace.from_dict(json.loads(json.dumps(trace.to_dict())))
    verdict = replay(stored, replace(case.detector, on_stop="stop"))
    require(verdict == want, f"replayed: {verdict}, live: {want}")
    return f"with the signals {', '.join(signals)}" if signals else "from the tokens alone"


def _returns(case: DetectorCase) -> str:
    """Where an action goes back to, `returns` named from when it was the present token on."""
    actions = ["answer", *(["regenerate"] if case.detector.anchors else [])]
    return "; ".join(f"{action}: {_returned(case, action)}" for action in actions)


def _returned(case: DetectorCase, action: str) -> str:
    """Watch the text as the decode loop does; the state that the action needs must be there."""
    watcher = replace(case.detector, on_stop=action).watch(PROMPT)
    states, most = set[int](), 0
    for now, piece in enumerate(case.text, start=1):
        verdict = watcher.update([piece])
        if verdict is not None:
            place = verdict.anchor if action == "regenerate" else verdict.token
            if place is None:
                raise Breach("`anchors` is True, and the verdict has no anchor")
            # The state of no token is that of one: the prompt has been read.
            reason = f"with on_stop={action!r} the verdict goes back from token {now} to {place}: "
            advice = f"`returns` must name {place} at every token from token {place} on"
            require(max(place, 1) in (now, *states), reason + advice)
            return f"from {now} to {place}, at most {most} states kept"
        named: object = watcher.returns()
        if not isinstance(named, Collection) or not all(type(n) is int for n in named):
            raise Breach(f"returns() gave {named!r} after token {now}: not numbers of tokens")
        wanted = {max(n, 1) for n in named}
        states = (states & wanted) | (wanted & {now})
        most = max(most, len(states))
        case.look(watcher, now - 1)
    return "no verdict"


# ---------------------------------------------------------------- penalties

V, PAD = 64, 63
#: Rows' texts: a loop, fresh tokens with repeats, a few tokens, none.
_draw = random.Random(0)
TEXTS: tuple[list[int], ...] = (
    [1, 2, 3, 4, 5, 6, 7] * 9,
    [_draw.randrange(20) for _ in range(40)],
    [8, 9, 8, 9],
    [],
)
SCORES = torch.linspace(-3, 3, len(TEXTS) * V, dtype=torch.float64).view(len(TEXTS), V).roll(5, 1)


def _same(got: Tensor, want: Tensor, reason: str) -> None:
    near = torch.isclose(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)
    require(got.shape == want.shape and bool(near.all()), reason)


def _of_history(penalty: Penalty, text: list[int], row: int) -> Tensor:
    """`penalise` of one row by itself, (1, V)."""
    lengths = torch.tensor([len(text)])
    return penalty.penalise(torch.tensor([text]).long(), lengths, SCORES[[row]])


def _padded(fill: int, before: int = 0) -> tuple[Tensor, Tensor]:
    """The texts right-aligned, (B, n), with `fill` before them; their lengths, (B,)."""
    n = max(map(len, TEXTS)) + before
    rows = [[fill] * (n - len(text)) + text for text in TEXTS]
    return torch.tensor(rows), torch.tensor([len(text) for text in TEXTS])


def _changes(penalty: Penalty) -> str:
    """It changes some score unless it is `neutral`, and writes into nothing."""
    history, lengths = _padded(PAD)
    for dtype in (torch.float64, torch.bfloat16):
        scores = SCORES.to(dtype)
        before = [x.clone() for x in (history, lengths, scores)]
        got = penalty.penalise(history, lengths, scores)
        for name, now, then in zip(
            ("history", "lengths", "scores"), (history, lengths, scores), before, strict=True
        ):
            require(torch.equal(now, then), f"penalise() wrote into its {name}: clone them first")
        shapes = f"{tuple(scores.shape)}, {dtype}, it makes {tuple(got.shape)}, {got.dtype}"
        require((got.shape, got.dtype) == (scores.shape, dtype), f"of scores {shapes}")
        if penalty.neutral:
            require(got is scores, "`neutral` is True, but the result is another object")
        else:
            reason = "it changes no score of these texts: try other parameters, or be `neutral`"
            require(not torch.equal(got, scores), reason)
    return "gives back the very scores" if penalty.neutral else "changes scores"


def _rows(penalty: Penalty) -> str:
    """Ragged rows together are each row alone, whatever is before short ones."""
    for fill, before in ((PAD, 0), (3, 11)):
        got = penalty.penalise(*_padded(fill, before), SCORES)
        for row, text in enumerate(TEXTS):
            reason = f"a row of {len(text)} tokens behind padding with id {fill} is not that row"
            reason += " alone: only the last `lengths[row]` places are history"
            _same(got[[row]], _of_history(penalty, text, row), reason)
    return f"rows of {', '.join(str(len(text)) for text in TEXTS)} tokens, each as if alone"


def _calls(penalty: Penalty) -> str:
    """Called with ids, token by token and with drafts, it is `penalise` of the same history."""
    for include in (False, True):
        calls = replace(penalty, include_prompt=include, pad_token_id=PAD)
        prompt, text = [PAD, PAD, 1, 2, 3], TEXTS[0][:20]
        widths = [*range(21), *(18, 19, 20) * 2]  # the last ones are drafts that were refused
        for n in widths:
            history = ([1, 2, 3] if include else []) + text[:n]
            got = calls(torch.tensor([prompt + text[:n]]), SCORES[:1])
            reason = f"called with a prompt of 3 tokens and {n} generated, include_prompt={include}"
            reason += ": not penalise() of that history; see `begin`, `push` and `apply`"
            _same(got, _of_history(calls, history, 0), reason)
    return "generated tokens, the prompt on request, padding never; drafts are forgotten"


#: The checks of each kind, by name.
CHECKS: Mapping[str, Mapping[str, Callable[[Any], str]]] = {
    "detector": {
        "declared": _detector_declared,
        "evidence": _evidence,
        "cuts": _cuts,
        "alone": _alone,
        "replayed": _replayed,
        "returns": _returns,
    },
    "penalty": {
        "declared": lambda penalty: _declared(PENALTIES, penalty),
        "changes": _changes,
        "rows": _rows,
        "calls": _calls,
    },
}
