"""The harness's `--model_args`, a task's generation arguments, and its stop strings."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from attention.errors import InvalidValue, check_int
from attention.methods import METHODS
from attention.spec import setting
from experiments.grid.config import Config, check
from experiments.grid.models import REASONER
from experiments.grid.plan import lacks_budget
from experiments.grid.presets import default_preset, load
from lil import Detector, Trace, Verdict, Watcher

#: Arguments and the keys of a configuration they stand for.
_SAME = (
    *("revision", "dtype", "device", "engine", "threads", "batch_size", "check_every"),
    *("temperature", "top_k", "top_p", "seed", "weights", "template_values"),
)
_KEYS = {
    "pretrained": "models",
    "backend": "backends",
    "budget": "budgets",
    "penalty": "penalties",
    "detector": "detectors",
    **{key: key for key in _SAME},
}
_TABLES = ("backend_params", "penalty_params", "detector_params", "action_params")

#: A task's names for the most tokens of a generation, the first of them first.
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_SAMPLING = ("temperature", "top_k", "top_p", "seed")


def configuration(arguments: Mapping[str, Any]) -> Config:
    """The configuration that model arguments ask for.

    Names are those of `lil run` and of `--set`: `backend=quest,budget=1024`,
    `backend_params.quest.page=16`, `penalty=lz`, `detector=guardian:answer`. The rest but detectors
    and penalties comes from `preset`, by default the demo's for the reasoner and the defaults of
    `Config` for other models.
    """
    left = dict(arguments)
    preset = left.pop("preset", None)
    overrides: dict[str, Any] = {"detectors": "none", "penalties": "none"}
    for name, value in left.items():
        keys, _ = setting(f"{name}=")
        if len(keys) == 3 and keys[0] in _TABLES:
            table, method, parameter = keys
            overrides.setdefault(table, {}).setdefault(method, {})[parameter] = value
        elif name in _KEYS:
            overrides[_KEYS[name]] = value
        else:
            known = [*_KEYS, "preset", "max_gen_toks", "max_length"]
            allowed = f"one of {', '.join(known)}, or as backend_params.quest.page"
            raise InvalidValue("model argument", name, allowed, known)
    overrides.setdefault("backends", "full")
    overrides["null"] = "none"  # the last backend is then the one of the arguments
    without_budget = overrides.get("budgets") is None
    if without_budget:
        overrides["budgets"] = 1
    overrides.setdefault("models", REASONER)
    config = load(preset or default_preset(overrides), overrides)
    for key in ("models", "backends", "budgets", "penalties"):
        if len(getattr(config, key)) > 1:
            raise InvalidValue(key, ",".join(map(str, getattr(config, key))), "one of them")
    (backend,) = config.backends
    if without_budget and lacks_budget(config, METHODS.spec(backend)):
        raise InvalidValue("budget", None, f"budget=N with backend={backend}")
    return config


@dataclass(frozen=True)
class GenerationArguments:
    """How one generation is asked for."""

    until: tuple[str, ...]
    max_new_tokens: int
    sampling: Mapping[str, Any]

    @classmethod
    def read(
        cls, arguments: Mapping[str, Any], config: Config, max_gen_toks: int
    ) -> GenerationArguments:
        """Read a task's generation arguments; `config` and `max_gen_toks` hold the defaults."""
        left = {name: value for name, value in arguments.items() if value is not None}
        until = left.pop("until", ())
        until = (until,) if isinstance(until, str) else tuple(until)
        if not all(isinstance(text, str) for text in until):
            raise InvalidValue("until", list(until), "texts")
        lengths = [left.pop(name) for name in _LENGTHS if name in left]
        drawn = {name: left.pop(name) for name in _SAMPLING if name in left}
        do_sample = left.pop("do_sample", None)
        if left.pop("num_beams", 1) != 1:
            raise InvalidValue("num_beams", arguments["num_beams"], "1: there is no beam search")
        for name in left:
            known = ["until", *_LENGTHS, *_SAMPLING, "do_sample"]
            raise InvalidValue("generation argument", name, f"one of {', '.join(known)}", known)
        values = {name: getattr(config, name) for name in _SAMPLING}
        values |= check(drawn, "the generation arguments")
        if do_sample is False:
            if values["temperature"]:
                message = "do_sample=False: greedy, whatever the temperature (say do_sample=True)"
                warnings.warn(message, stacklevel=2)
            values["temperature"] = 0.0
        elif do_sample and not values["temperature"] and "temperature" not in drawn:
            values["temperature"] = 1.0  # what transformers samples with by default
        most = check_int("max_gen_toks", int(lengths[0]) if lengths else max_gen_toks, 1)
        return cls(tuple(filter(None, until)), most, values)


@dataclass(frozen=True)
class Until(Detector):
    """Ends a generation once its text, without the prompt, holds one of these strings."""

    strings: tuple[str, ...] = ()
    region: str | None = field(default="output", kw_only=True)

    name: ClassVar[str] = "until"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.strings or not all(self.strings):
            raise InvalidValue("strings", self.strings, "one or more texts, none of them empty")

    def params(self) -> dict[str, Any]:
        """The parameters, resolved and JSON-able."""
        return {**super().params(), "strings": list(self.strings)}

    def watch(self, prompt: bytes = b"") -> UntilWatcher:  # noqa: ARG002 - the output alone counts
        return UntilWatcher(self)


class UntilWatcher(Watcher[Until]):
    """Stores as much of the text as the beginning of a string may take."""

    def __init__(self, detector: Until) -> None:
        super().__init__(detector)
        self._wanted = [string.encode() for string in detector.strings]
        self._longest = max(map(len, self._wanted))
        self._end = b""

    def push(self, piece: bytes) -> Verdict | None:
        text = self._end + piece
        if any(wanted in text for wanted in self._wanted):
            return Verdict("until", self.tokens, {"step": self.tokens})
        self._end = text[max(0, len(text) - self._longest + 1) :]
        return None


def text_before(
    trace: Trace, strings: Sequence[str], special: Collection[int] = (), thinking_end: str = ""
) -> str:
    """A trace's text up to the first of the strings in it, from the last end of thinking on."""
    pieces = trace.text_pieces
    whole = b"".join(pieces)
    thought, end, _ = whole.rpartition(thinking_end.encode()) if thinking_end else (b"", b"", b"")
    skip = len(thought + end)
    places = [at for string in strings if (at := whole.find(string.encode(), skip)) >= 0]
    left = min(places, default=len(whole))
    parts = []
    for token, piece in zip(trace.new_ids, pieces, strict=False):  # `eos` is no text
        if token not in special:
            parts.append(piece[skip:left])
        left -= min(left, len(piece))
        skip -= min(skip, len(piece))
    text = b"".join(parts).decode(errors="replace")
    return text.lstrip() if end else text
