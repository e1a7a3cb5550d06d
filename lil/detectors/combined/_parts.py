"""Detectors made of other detectors, which all watch the same generation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from attention.errors import InvalidValue
from lil.detectors.base.base import Detector, Verdict, Watcher
from lil.detectors.base.region import RegionTracker
from lil.detectors.base.specs import build, part_specs, to_spec
from lil.trace import Signal

if TYPE_CHECKING:
    from lil.hidden_states import Reading

#: Parts of a detector: `a+b(c=1)`, or names, mappings of `name` and parameters, and detectors.
Parts = str | Sequence[str | Mapping[str, Any] | Detector]


@dataclass(frozen=True)
class Combination(Detector):
    """A detector whose verdict follows from those of its parts.

    What follows a verdict belongs to the whole; so does the region, unless a part has its own.
    """

    parts: Parts

    served: ClassVar[bool] = True  # where its parts are

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = part_specs(self.parts) if isinstance(self.parts, str) else self.parts
        allowed = "names joined by +, or a list of names, mappings with a name, and detectors"
        if not isinstance(parts, Sequence) or not parts:
            raise InvalidValue("parts", self.parts, allowed)
        detectors = (p if isinstance(p, Detector) else build(p, "parts") for p in parts)
        alike = tuple(
            replace(part, on_stop=self.on_stop, region=part.region or self.region)
            for part in detectors
        )
        object.__setattr__(self, "parts", alike)

    @property
    def detectors(self) -> tuple[Detector, ...]:
        """The parts, each with the action of the whole."""
        return cast("tuple[Detector, ...]", self.parts)

    def params(self) -> dict[str, Any]:
        parts = [(spec.name, spec.params) for spec in map(to_spec, self.detectors)]
        return {**super().params(), "parts": [{"name": name, **own} for name, own in parts]}

    def identity(self) -> dict[str, Any]:
        parts = [part.identity() for part in self.detectors]
        for part in parts:
            del part["on_stop"]
        return {**super().identity(), "parts": parts}

    @property
    def uses(self) -> Sequence[Any]:
        return self.detectors

    @property
    def signals(self) -> frozenset[str]:
        return frozenset[str]().union(*(part.signals for part in self.detectors))

    @property
    def blocks(self) -> frozenset[int]:
        return frozenset[int]().union(*(part.blocks for part in self.detectors))

    @property
    def compared(self) -> frozenset[bytes]:
        return frozenset[bytes]().union(*(part.compared for part in self.detectors))

    @property
    def cues(self) -> frozenset[str]:
        return frozenset[str]().union(*(part.cues for part in self.detectors))

    def quiet(self) -> Self:
        """One of the parts that make signals, and none of these fires."""
        parts = [part.quiet() for part in self.detectors if part.signals]
        return replace(self, parts=parts) if parts else self

    def everywhere(self) -> Self:
        return replace(super().everywhere(), parts=[part.everywhere() for part in self.detectors])

    def anew(self) -> Self | None:
        parts = [again for part in self.detectors if (again := part.anew()) is not None]
        return replace(self, parts=parts) if parts else None

    def require_tokens(self, table: Sequence[bytes]) -> None:
        for part in self.detectors:
            part.require_tokens(table)

    def require_text(self, text: bytes) -> None:
        for part in self.detectors:
            part.require_text(text)


class PartWatchers(Watcher[Combination]):
    """The watchers of all parts; a subclass says when their verdicts are one."""

    def __init__(self, detector: Combination, prompt: bytes) -> None:
        super().__init__(detector, prompt)
        self.tracker = RegionTracker("output", prompt)  # each part has a region of its own
        self.watchers: list[Watcher[Any]] = [part.watch(prompt) for part in detector.detectors]

    @abstractmethod
    def join(self, newest: Verdict) -> Verdict | None:
        """The verdict of the whole, now that a part has one."""

    def push(self, piece: bytes) -> Verdict | None:
        """See the next token; of parts that fire at it, the one that keeps least counts."""
        new = [verdict for watcher in self._waiting() if (verdict := watcher.update([piece]))]
        return self.join(min(new, key=lambda verdict: verdict.token)) if new else None

    def _waiting(self) -> list[Watcher[Any]]:
        return [watcher for watcher in self.watchers if not watcher.done]

    def returns(self) -> Sequence[int]:
        return sorted({at for watcher in self._waiting() for at in watcher.returns()})

    @property
    def wants(self) -> bool:
        return any(watcher.wants for watcher in self._waiting())

    def see(self, reading: Reading) -> None:
        for watcher in self._waiting():
            if watcher.wants:
                watcher.see(reading)

    def asking(self) -> Sequence[Any]:
        return [asking for watcher in self._waiting() for asking in watcher.asking()]

    def seen(self) -> Mapping[str, Signal]:
        """The signals of all parts; of the same one, the longest."""
        signals: dict[str, Signal] = {}
        for watcher in self.watchers:
            for name, signal in watcher.seen().items():
                signals[name] = max(signals.get(name, ()), signal, key=len)
        return signals

    def recall(self, signals: Mapping[str, Signal]) -> None:
        for watcher in self.watchers:
            watcher.recall(signals)
