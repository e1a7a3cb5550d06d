"""Everything that watches one row: detectors that may act, and probes that only record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lil.detectors import Action, Detector, Stop, Verdict, Watcher, ends_thinking
from lil.hidden_states import HiddenStates, Reading
from lil.trace import Signal


class Observers:
    """The watchers of one sequence.

    Args:
        detectors: whose verdicts count, the first one first.
        prompt: text before the first generated token.
    """

    def __init__(self, detectors: Sequence[Detector], prompt: bytes) -> None:
        self._prompt = prompt
        self._judges = [(detector.watch(prompt), detector.action) for detector in detectors]
        self._readers = [watcher for watcher, _ in self._judges if watcher.detector.signals]
        self._probes: list[Watcher[Any]] = []
        self._known: Mapping[str, Signal] = {}
        self._skipped = 0  # tokens that the probes have not been shown
        self._signals: dict[str, Signal] = {}
        self._since: int | None = None  # tokens before those that a second verdict is about

    def probe(
        self, probes: Sequence[Detector], given: Sequence[bytes], known: Mapping[str, Signal]
    ) -> None:
        """Record signals from here on.

        Args:
            probes: detectors whose signals are recorded and whose verdicts are ignored.
            given: the tokens there are. The last of them is shown: its hidden state is the first to
                come.
            known: their signals from another run of them.
        """
        self._skipped = max(0, len(given) - 1)
        self._known = {
            name: tuple(at for at in signal if at[0] <= self._skipped)
            for name, signal in known.items()
        }
        # Of the whole output: whoever replays the trace says what is watched.
        self._probes = [probe.quiet().everywhere().watch(self._prompt) for probe in probes]
        for probe in self._probes:
            probe.update(given[-1:])
        self._readers += self._probes

    def judge(self, piece: bytes) -> tuple[Verdict, Action] | None:
        """Show everyone the newest token; the first detector's verdict, and what follows it."""
        for probe in self._probes:
            probe.update([piece])
        for watcher, action in self._judges:
            verdict = watcher.update([piece])
            if verdict is not None:
                return self._placed(verdict), action
        return None

    def _placed(self, verdict: Verdict) -> Verdict:
        """The verdict in tokens of the whole row; the evidence says from where it counts."""
        if self._since is None:
            return verdict
        evidence = {**verdict.evidence, "after": self._since}
        return replace(verdict, token=verdict.token + self._since, evidence=evidence)

    def see(self, states: HiddenStates, place: int) -> None:
        """Hand on what was read at the newest token to those who want it.

        Args:
            states: of the newest forward.
            place: this row's.
        """
        for reader in self._readers:
            if reader.wants:
                reader.see(Reading(states, place))

    def returns(self) -> set[int]:
        """Numbers of tokens that a verdict may go back to."""
        if self._since is not None:  # a second verdict ends the row
            return set()
        return {n for watcher, _ in self._judges if not watcher.done for n in watcher.returns()}

    def again(self, tokens: int, text: bytes, cue: str) -> None:
        """The detectors begin anew, and a verdict now stops; their signals are not recorded.

        Where the cue ends the thinking, what they watch is the answer that was asked for.

        Args:
            tokens: generated ones that are kept.
            text: the prompt and these.
            cue: what is given next.
        """
        detectors = [
            again.everywhere() if ends_thinking(cue) else again
            for watcher, _ in self._judges
            if (again := watcher.detector.anew()) is not None
        ]
        self.off(tokens)
        self._since = tokens
        self._judges = [(detector.watch(text), Stop()) for detector in detectors]
        self._readers = [watcher for watcher, _ in self._judges if watcher.detector.signals]

    def off(self, tokens: int) -> None:
        """Nobody watches any more; what was recorded of the first `tokens` tokens is kept."""
        self._signals = self.signals(tokens)
        self._judges, self._probes, self._readers = [], [], []

    def signals(self, tokens: int) -> dict[str, Signal]:
        """What readers made of the first `tokens` tokens."""
        found = dict(self._signals)
        if self._since is not None:
            return found
        for reader in self._readers:
            probing = any(reader is probe for probe in self._probes)
            skipped = self._skipped if probing else 0
            for name, signal in reader.seen().items():
                before = self._known.get(name, ()) if probing else ()
                own = tuple((n + skipped, value) for n, value in signal)
                found[name] = tuple(at for at in (*before, *own) if at[0] <= tokens)
        return found
