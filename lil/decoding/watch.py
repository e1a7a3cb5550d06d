"""Everything that watches one row: detectors that may act, and probes that only record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lil.actions import Action
from lil.detectors import Acting, Detector, Reading, Verdict, follows
from lil.hidden_states import HiddenStates

Signal = tuple[tuple[int, float], ...]


class Watch:
    """The detectors and probes of one sequence.

    Args:
        detectors: templates, cloned and started here.
        probes: detectors whose signals are recorded and whose verdicts are ignored.
        prompt: text before the first generated token.
        given: the first tokens are known ones; probes wait for `resume`.
    """

    def __init__(
        self,
        detectors: Sequence[Detector],
        probes: Sequence[Detector],
        prompt: bytes,
        given: bool = False,
    ) -> None:
        self._prompt, self._waiting = prompt, given
        self._detectors = [detector.clone() for detector in detectors]
        self._probes = [probe.quiet() for probe in probes if isinstance(probe, Reading)]
        for one in (*self._detectors, *self._probes):
            one.start(prompt=prompt)
        self._readers = [d for d in (*self._detectors, *self._probes) if isinstance(d, Reading)]
        self._known: Mapping[str, Signal] = {}
        self._skipped = 0  # tokens that the probes have not been shown
        self._signals: dict[str, Signal] = {}

    def judge(self, piece: bytes) -> tuple[Verdict, Action] | None:
        """Show everyone the newest token; the first detector's verdict, and what follows it."""
        for probe in () if self._waiting else self._probes:
            probe.update([piece])
        for detector in self._detectors:
            verdict = detector.update([piece])
            if verdict is not None:
                return verdict, follows(detector)
        return None

    def resume(self, pieces: Sequence[bytes], known: Mapping[str, Signal]) -> None:
        """Begin probing behind given tokens, whose signals are known from another run of them.

        The last of them is shown: its hidden state is the first to come.
        """
        self._waiting, self._skipped = False, len(pieces) - 1
        self._known = {
            name: tuple(at for at in signal if at[0] <= self._skipped)
            for name, signal in known.items()
        }
        for probe in self._probes:
            probe.start(prompt=self._prompt)
            probe.update(pieces[-1:])

    def see(self, states: HiddenStates, place: int) -> None:
        """Hand on the hidden state of the token just read to those who want it.

        Args:
            states: of the newest forward.
            place: this row's.
        """
        for reader in self._readers:
            if reader.wants:
                reader.see(states[reader.block][place])

    def returns(self) -> set[int]:
        """Numbers of tokens that a verdict may go back to."""
        return {n for one in self._detectors if isinstance(one, Acting) for n in one.returns()}

    def off(self, tokens: int) -> None:
        """Nobody watches any more; what was recorded of the first `tokens` tokens is kept."""
        self._signals = self.signals(tokens)
        self._detectors, self._probes, self._readers = [], [], []

    def signals(self, tokens: int) -> dict[str, Signal]:
        """What readers made of the first `tokens` tokens."""
        found = dict(self._signals)
        for reader in self._readers:
            probing = any(reader is probe for probe in self._probes)
            skipped = self._skipped if probing else 0
            own = tuple((n + skipped, value) for n, value in reader.seen())
            before = self._known.get(reader.signal, ()) if probing else ()
            found[reader.signal] = tuple(at for at in (*before, *own) if at[0] <= tokens)
        return found
