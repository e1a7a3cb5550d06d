"""One sequence on its way through the batch, and everything that watches it."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from attention import AttentionCache
from attention.errors import InvalidValue
from lil.compression.curves import Point
from lil.compression.meter import Meter
from lil.decoding.ledger import Totals, cost_of
from lil.decoding.options import DecodeOptions, Request
from lil.decoding.sampling import row_stream
from lil.detectors import Action, Detector, Stop, Verdict, Watcher, ends_thinking, is_answering
from lil.detectors.base.asking import AskingWatcher, Trial
from lil.hidden_states import HiddenStates, Reading
from lil.thinking import Marks, closing, state_behind
from lil.trace import Cost, Signal


class Observers:
    """The watchers of one sequence."""

    def __init__(self, detectors: Sequence[Detector], prompt: bytes) -> None:
        self._prompt = prompt
        self._judges = [(detector.watch(prompt), detector.action) for detector in detectors]
        self.readers = [watcher for watcher, _ in self._judges if watcher.detector.signals]
        self._probes: list[Watcher[Any]] = []
        self._known: Mapping[str, Signal] = {}
        self._skipped = 0  # tokens that the probes have not been shown
        self._signals: dict[str, Signal] = {}
        self._since: int | None = None  # tokens before those that a second verdict is about

    def probe(
        self, probes: Sequence[Detector], pieces: Sequence[bytes], known: Mapping[str, Signal]
    ) -> None:
        """Record signals of `probes` from here on; `known` are those of the tokens before.

        The last of `pieces` is shown: its hidden state comes first.
        """
        self._skipped = max(0, len(pieces) - 1)
        self._known = {
            name: tuple(at for at in signal if at[0] <= self._skipped)
            for name, signal in known.items()
        }
        # Of the whole output: whoever replays the trace says what is watched.
        self._probes = [probe.quiet().everywhere().watch(self._prompt) for probe in probes]
        for probe in self._probes:
            probe.update(pieces[-1:])
        self.readers += self._probes

    @property
    def patience(self) -> float:
        """How many of the next tokens bring no verdict; infinite where none will come any more."""
        waiting = [watcher.patience for watcher, _ in self._judges if not watcher.done]
        return 0 if self._probes else min(waiting, default=math.inf)

    def judge(self, pieces: Sequence[bytes]) -> tuple[Verdict, Action] | None:
        """Show all watchers the newest tokens, at most `patience` + 1; the first one's verdict."""
        for probe in self._probes:
            probe.update(pieces[-1:])  # the others are from before it came
        for watcher, action in self._judges:
            verdict = watcher.update(pieces)
            if verdict is not None:
                return self._placed(verdict), action
        return None

    def _placed(self, verdict: Verdict) -> Verdict:
        """The verdict in tokens of the whole row; the evidence says from where it counts."""
        if (since := self._since) is None:
            return verdict
        evidence = {**verdict.evidence, "after": since}
        anchor = None if verdict.anchor is None else verdict.anchor + since
        return replace(verdict, token=verdict.token + since, evidence=evidence, anchor=anchor)

    def see(self, states: HiddenStates, place: int) -> None:
        """Hand on row `place` of the newest forward's states to those who want it."""
        for reader in self.readers:
            if reader.wants:
                reader.see(Reading(states, place))

    def returns(self) -> set[int]:
        """Numbers of tokens that a verdict which does not end the row may go back to."""
        going = [w for w, action in self._judges if not (action.ends or w.done)]
        return {n + (self._since or 0) for watcher in going for n in watcher.returns()}

    def restart(self, tokens: int, text: bytes, cue: str, acted: int = 1) -> None:
        """Watch anew behind `tokens` generated ones (`text` with the prompt).

        A verdict stops now, unless fewer than its action's `tries` were `acted` upon. Where the cue
        ends the thinking, detectors watch the answer.
        """
        detectors = [
            (again.everywhere() if ends_thinking(cue) else again, action)
            for watcher, action in self._judges
            if (again := watcher.detector.anew()) is not None
        ]
        self.stop(tokens)
        self._since = tokens
        self._judges = [
            (detector.watch(text), action if acted < action.tries else Stop())
            for detector, action in detectors
        ]
        self.readers = [watcher for watcher, _ in self._judges if watcher.detector.signals]

    def stop(self, tokens: int) -> None:
        """Nobody watches any more; signals of the first `tokens` tokens stay."""
        self._signals = self.signals(tokens)
        self._judges, self._probes, self.readers = [], [], []

    def signals(self, tokens: int) -> dict[str, Signal]:
        """Readers' numbers of the first `tokens` tokens."""
        signals = dict(self._signals)
        if self._since is not None:
            return signals
        for reader in self.readers:
            probing = any(reader is probe for probe in self._probes)
            skipped = self._skipped if probing else 0
            for name, signal in reader.seen().items():
                before = self._known.get(name, ()) if probing else ()
                own = tuple((n + skipped, value) for n, value in signal)
                signals[name] = tuple(at for at in (*before, *own) if at[0] <= tokens)
        return signals


@dataclass(frozen=True)
class RunContext:
    """Options, token table, ends, cues and positions that all lanes of a run share."""

    options: DecodeOptions
    table: Sequence[bytes]
    eos: frozenset[int]
    cues: Mapping[str, Sequence[int]]
    positions: int | None = None
    compared: Mapping[bytes, int] = field(default_factory=dict)
    marks: Sequence[Marks] = ()

    def cue_of(self, cue: str, prompt: bytes, output: bytes) -> str:
        """A cue that ends the thinking that is open, if it ends any."""
        other = closing(cue, state_behind(prompt, output).opened, self.marks)
        return other if other in self.cues else cue


class PendingAction(NamedTuple):
    """A verdict and its action; the model's state goes back to `cut` tokens first."""

    verdict: Verdict
    action: Action
    cut: int


class Lane:
    """Tokens, watchers, random stream and measurements of one sequence; `place` is its row."""

    def __init__(self, index: int, request: Request, place: int, shared: RunContext) -> None:
        self.index, self.request, self.place, self._shared = index, request, place, shared
        self.prompt_ids = tuple(request.prompt_ids)
        self.new_ids: list[int] = []
        self.unread = 0  # tokens chosen behind these, at which the host has not looked
        self._pieces: list[bytes] = []
        self.dropped: list[int] = []  # decoded, then chopped off
        self.finish: str | None = None
        self.evidence: Mapping[str, object] | None = None
        self.due: PendingAction | None = None
        self.acted: dict[str, object] | None = None
        self.snapshots: dict[int, AttentionCache] = {}  # by generated tokens
        self.prefill_sec = 0.0
        self.started_at = 0.0  # the batch's decode seconds when this row joined
        self._cap = request.max_new_tokens or shared.options.max_new_tokens
        self._queued: deque[int] = deque()  # tokens that come next, whatever is sampled
        self._limit = math.inf  # most tokens of the output, after an action
        self._actions = 0  # so far
        self._heat, self._hot = 0.0, 0  # of the tokens before so many: another temperature
        self._shown = 0  # tokens that the watchers have seen
        self.calm = 0.0  # next tokens at which only an `eos` can change anything
        options = shared.options
        self.prompt_bytes = b"".join(shared.table[i] for i in self.prompt_ids)
        self._observers = Observers(options.detectors, self.prompt_bytes)
        self._stream = row_stream(options.seed, str(request.item_id), request.sample_index)
        self._ahead: deque[float] = deque()  # drawn, and not used so far
        self.drafts: Counter[str] = Counter()  # of speculation: drafted, accepted, keys read
        self._begin_meter()
        self.costs: list[Cost] = []  # of the row's own decode steps, a check each
        self.totals: Totals[float] | None = None
        self._force(request.forced)
        self.reused = len(self.new_ids)
        self._observers.probe(options.probes, self.pieces, request.signals)
        self.calm = 0
        # What must be read before the next token can be chosen; a row's last token never is.
        read = self.new_ids if self.finish is None else self.new_ids[:-1]
        self.prefix = (*self.prompt_ids, *read)

    def _begin_meter(self) -> None:
        self._meter = Meter()
        self.curve: list[Point] = []

    def _force(self, tokens: Sequence[int]) -> None:
        """Take known tokens as if they had just been chosen: everything that watches sees them."""
        for token in tokens:
            if self.finish is not None:
                return
            self.draw()
            self.take(token)
            if self.check_due:
                self._measure_text()

    @property
    def positions(self) -> int | None:
        """Of the model, in tokens."""
        return self._shared.positions

    @property
    def pieces(self) -> list[bytes]:
        """Bytes of the tokens kept."""
        table = self._shared.table
        self._pieces += [table[token] for token in self.new_ids[len(self._pieces) :]]
        return self._pieces

    @property
    def decoded(self) -> int:
        """Tokens generated, those that were dropped again among them."""
        return len(self.new_ids) + len(self.dropped)

    @property
    def full(self) -> bool:
        """Whether the cap is reached with the tokens that are still to be looked at."""
        return self.decoded + self.unread >= self._cap

    @property
    def check_due(self) -> bool:
        return self.finish is not None or len(self.new_ids) % self._shared.options.check_every == 0

    @property
    def signals(self) -> dict[str, Signal]:
        """What readers made of the tokens kept."""
        return self._observers.signals(len(self.new_ids))

    @property
    def heat(self) -> float:
        """The next token's temperature; 0 where it is the run's."""
        return self._heat if len(self.new_ids) < self._hot else 0.0

    def draw(self) -> float:
        """The uniform number that decides the next token."""
        return self._ahead.popleft() if self._ahead else self._stream.random()

    def ahead(self, tokens: int) -> list[float]:
        """The numbers that decide the next tokens; `draw` gives them later, in order."""
        while len(self._ahead) < tokens:
            self._ahead.append(self._stream.random())
        return [self._ahead[at] for at in range(tokens)]

    def see(self, states: HiddenStates, place: int) -> None:
        self._observers.see(states, place)

    def trials(self) -> Iterator[tuple[AskingWatcher, Trial]]:
        """Who asks for an answer at the newest token, which the model has not read."""
        going, shared = self.finish is None and self.due is None, self._shared
        readers = self._observers.readers if going else ()
        for watcher in (asking for reader in readers for asking in reader.asking()):
            read = self.new_ids[-1:] if watcher.detector.at != "word" else []
            output = b"".join(self.pieces[: len(self.new_ids) - 1 + len(read)])
            cue = shared.cue_of(watcher.detector.cue, self.prompt_bytes, output)
            yield watcher, Trial(watcher.detector, [*read, *shared.cues[cue]])

    def take(self, sampled: int) -> int:
        """The next token, of a cue if any is left, else the sampled one.

        It may end the row: `eos` comes first, then the cap, then a verdict.
        """
        token = self._queued.popleft() if self._queued else sampled
        self.new_ids.append(token)
        tokens, every = len(self.new_ids), self._shared.options.check_every
        left = min(self._cap - self.decoded, self._limit - tokens)
        if token in self._shared.eos:
            self.finish = "eos"
        elif left <= 0:
            self.finish = "length"
        else:
            conclusion = self._observers.judge(self.pieces[self._shown :])
            self._shown, patience = tokens, 0 if self._queued else self._observers.patience
            self.calm = min(left - 1, patience, every - 1 - tokens % every)
            if conclusion is not None:
                self._conclude(*conclusion)
        return token

    def _conclude(self, verdict: Verdict, action: Action) -> None:
        """End here, or leave it to the loop to act: what the model holds may have to change."""
        output = b"".join(self.pieces[: verdict.token])
        cue = self._shared.cue_of(action.gives[0], self.prompt_bytes, output)
        answering = not action.rewinds and is_answering(cue, self.prompt_bytes, output)
        if action.ends or answering:
            self.finish, self.evidence = verdict.detector, verdict.evidence
            self._observers.stop(verdict.token)
            self.drop(verdict.token)
        else:
            self.due = PendingAction(verdict, action, self._cut_of(verdict, action))

    def _cut_of(self, verdict: Verdict, action: Action) -> int:
        """How many tokens stay when the verdict is acted upon."""
        cut = verdict.token
        if action.rewinds and verdict.anchor is not None:
            cut = verdict.anchor
        elif action.anchored:
            allowed = f"an action that goes on from there: {verdict.detector} names no anchor"
            raise InvalidValue("on_stop", action.name, allowed)
        # Without a cue something must be left to go on from: the first token, which was chosen when
        # the prompt had been read and is the same in every run.
        cut = cut if action.gives[0] else max(cut, 1)
        if not 0 <= cut <= len(self.new_ids):
            where = f"token {cut} of {len(self.new_ids)}"
            raise RuntimeError(f"{verdict.detector} goes back to {where}")
        return cut

    # Acting on a verdict

    def returns(self) -> set[int]:
        """Numbers of generated tokens that a coming verdict may go back to."""
        return self._observers.returns()

    def snapshot(self, due: PendingAction, tokens: int) -> AttentionCache:
        """The state of so many tokens."""
        if tokens not in self.snapshots:
            raise RuntimeError(
                f"{due.verdict.detector} goes back to token {tokens}, which its `returns` did "
                "not name while it was the present one"
            )
        return self.snapshots[tokens]

    def act(self, due: PendingAction) -> None:
        """Cut the output, queue the cue, note the action; the loop changes the model's state."""
        verdict, action, cut = due
        tokens = action.gives[1]
        cue = self._shared.cue_of(action.gives[0], self.prompt_bytes, b"".join(self.pieces[:cut]))
        self.due = None
        self.snapshots.clear()
        step = len(self.new_ids)
        self._actions += 1
        if action.watched:
            text = self.prompt_bytes + b"".join(self.pieces[:cut])
            self._observers.restart(cut, text, cue, self._actions)
        else:
            self._observers.stop(cut)
        self.drop(cut)
        self._shown, self.calm = cut, 0
        self._queued.extend(self._shared.cues[cue] if cue else ())
        if tokens is not None:
            self._limit = cut + len(self._queued) + tokens
        self._heat, hot = action.heat
        self._hot = cut + hot
        self.acted = {
            **action.to_dict(),
            **({"cue": cue} if cue else {}),
            **({"verdicts": self._actions} if self._actions > 1 else {}),
            "detector": verdict.detector,
            "step": step,
            "kept": cut,
            "dropped": step - cut,
            "cue_tokens": len(self._queued),
            "evidence": dict(verdict.evidence),
        }

    def drop(self, cut: int) -> None:
        """Forget all tokens but the first `cut`; what they cost stays."""
        if cut == len(self.new_ids):
            return
        self.dropped += self.new_ids[cut:]
        del self.pieces[cut:], self.new_ids[cut:]
        self.costs = [cost for cost in self.costs if cost.tokens <= cut]
        curve = [point for point in self.curve if (point[0] or 0) <= cut]
        self._begin_meter()
        done = 0
        for tokens, *_ in curve:
            self._meter.feed(b"".join(self.pieces[done : tokens or 0]))
            done = tokens or 0
        self.curve = curve

    # Measuring

    def check(self, totals: Totals[float], seconds: float) -> None:
        """Note what has been generated and what it cost so far."""
        self._measure_text()
        self.totals = totals
        # Where the row went back to a check and ends there, what was dropped is in the costs now.
        self.costs = [cost for cost in self.costs if cost.tokens < len(self.new_ids)]
        self.costs.append(cost_of(totals, len(self.new_ids), seconds))

    def _measure_text(self) -> None:
        """One point of the curve; meters work only here, not at every token."""
        done = (self.curve[-1][0] or 0) if self.curve else 0
        if done == len(self.new_ids):
            return  # a given prefix that already ended the row has been measured
        fresh = self.pieces[done : -1 if self.finish == "eos" else None]
        self._meter.feed(b"".join(fresh))
        self.curve.append((len(self.new_ids), self._meter.fed, self._meter.size()))
