"""How a run decodes: said once, and shown where it is taken."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from attention import Backend, Full
from attention.errors import InvalidValue, check_int
from lil.decoding.sampling import Sampler
from lil.detectors import Detector
from lil.penalties import Penalty

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class DecodeOptions:
    """How prompts are decoded.

    Args:
        backend: how the model attends.
        engine: what decode queries read keys and values with, see `attention.Backend.on`.
        penalties: templates, cloned per row.
        detectors: whose watchers, one a row, may end it.
        probes: detectors that read hidden states; what they make of them goes to `Trace.signals`,
            their verdicts nowhere.
        max_new_tokens: most generated tokens a prompt that does not say; `eos` and tokens that were
            dropped again are counted. A row is cut earlier where the model's positions end.
        beyond_positions: go on where they end: what a model writes there it was not made for.
        batch_size: most rows at a time.
        temperature, top_k, top_p: see `lil.decoding.sampling.Sampler`; temperature 0 is greedy.
        seed: of the random streams.
        check_every: generated tokens between the checks of a trace.
        token_bytes: bytes of each token id, for tokenizers that `lil.token_bytes` cannot read, or
            to read one but once; made of the tokenizer if None.

    Raises:
        InvalidValue: a value that cannot be used.
    """

    backend: Backend = field(default_factory=Full)
    engine: str = "auto"
    penalties: Sequence[Penalty] = ()
    detectors: Sequence[Detector] = ()
    probes: Sequence[Detector] = ()
    max_new_tokens: int = 4096
    beyond_positions: bool = False
    batch_size: int = 32
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0
    check_every: int = 50
    token_bytes: Sequence[bytes] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        given: Any = self.backend
        if not isinstance(given, Backend):
            allowed = "a backend, such as attention.get('quest', budget=256)"
            raise InvalidValue("backend", given, allowed)
        for name in ("detectors", "probes"):
            _require_all(name, getattr(self, name), Detector, "lil.detectors.get('guardian')")
        for name in ("max_new_tokens", "batch_size", "check_every"):
            object.__setattr__(self, name, check_int(name, getattr(self, name), 1))
        object.__setattr__(self, "seed", check_int("seed", self.seed))
        if not isinstance(self.beyond_positions, bool):
            raise InvalidValue("beyond_positions", self.beyond_positions, "True or False")
        Sampler(self.temperature, self.top_k, self.top_p)
        for detector in self.detectors:
            if detector.action.dense and not self.backend.keeps_all:
                allowed = f"a backend that keeps every key: {self.backend.name} has dropped some"
                raise InvalidValue("on_stop", detector.action.name, allowed)
        for probe in self.probes:
            if not probe.signals:
                raise InvalidValue("probes", probe.name, "detectors that read hidden states")
        for at, penalty in enumerate(_listed("penalties", self.penalties)):
            if not isinstance(penalty, Penalty):
                allowed = "a penalty of lil.penalties, or another lil.Penalty"
                raise InvalidValue(f"penalties[{at}]", penalty, allowed)


def _listed(name: str, given: Any) -> list[Any]:
    if isinstance(given, (str, type)) or not isinstance(given, Sequence):
        raise InvalidValue(name, given, "a list of them")
    return list(given)


def _require_all(name: str, given: Any, kind: type, example: str) -> None:
    for at, one in enumerate(_listed(name, given)):
        if not isinstance(one, kind):
            raise InvalidValue(
                f"{name}[{at}]", one, f"an object of lil.Detector, such as {example}"
            )


def with_options(options: DecodeOptions | None, spelled: dict[str, Any]) -> DecodeOptions:
    """The options given as an object, as keywords, or both: then keywords count.

    Raises:
        InvalidValue: an unknown one, or a value that cannot be used.
    """
    known = [one.name for one in fields(DecodeOptions)]
    for name in spelled:
        if name not in known:
            raise InvalidValue("option", name, "one of " + ", ".join(known), known)
    return replace(options or DecodeOptions(), **spelled)


def shows_options(function: F) -> F:
    """Let the signature of a function that takes `**spelled` show what may be spelled."""
    own = inspect.signature(function)
    made = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    defaults = DecodeOptions()
    made += [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=getattr(defaults, one.name),
            annotation=one.type,
        )
        for one in fields(DecodeOptions)
    ]
    function.__signature__ = own.replace(parameters=made)  # type: ignore[attr-defined]
    return function
