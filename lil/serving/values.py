"""What a request asks for, from the flat values that come with it.

Engines pass a request's extra values through as they are, over HTTP as texts and numbers alone.
A penalty has a switch, `lz`, and parameters named after it, `lz_alpha`; a parameter switches on,
too. `stop_on` names detectors as the command line does, `recurrence(run=60):answer`. `attention`
is "full" or absent.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from attention.errors import InvalidValue, check_choice, check_int
from attention.spec import Spec, split
from lil.compression import codecs
from lil.detectors import (
    ACTIONS,
    DETECTORS,
    Answer,
    Detector,
    build,
    opened,
    part_specs,
    spec_of,
)
from lil.penalties import DRYPenalty, LZPenalty, NoWaitPenalty, Penalty, PresenceWindowPenalty

#: Penalties that requests may ask for.
PENALTIES: tuple[type[Penalty], ...] = (
    LZPenalty,
    DRYPenalty,
    PresenceWindowPenalty,
    NoWaitPenalty,
)

#: Values of a request that end it, and the server's value for what `answer` gives the model.
STOPPING = ("stop_on", "stop_on_tokens", "stop_on_token", "stop_on_label")
CUE = "stop_on_cue"

#: The server's method, and the only method a request may name.
ATTENTION, FULL = "attention", "full"

#: Actions that an engine can take: it cannot go back, and its attention is its own.
ACTING = tuple(name for name, kind in ACTIONS.items() if not kind.rewinds and not kind.dense)

#: Bounds of numbers, since everybody on the server waits for a request. Numbers without a bound of
#: their own have `LARGEST`.
LARGEST = 1_000_000_000
MOST: Mapping[str, int] = {
    "window": 65_536, "buffer": 256, "longest": 256, "k": 256,
    "max_period": 4096, "long_period": 4096,
    "strength": 1000, "multiplier": 1000, "base": 1000, "alpha": 1000,
}  # fmt: skip
LEAST: Mapping[str, int] = {"f": 10, "strength": -1000}
ENTRIES, CHARACTERS, LABEL = 64, 4096, 256

#: Parameters of penalties that are no values of a request: padding never reaches a processor, and
#: words are looked for among all tokens, for which everybody would wait.
_OWN = ("pad_token_id", "words", "tokens")

#: Values of `stop_on` that ask for nothing.
OFF = ("off", "false")

_SWITCHES: Mapping[object, bool] = {
    "on": True, "true": True, 1: True, "off": False, "false": False, 0: False,
}  # fmt: skip

# ---------------------------------------------------------------- names


@functools.cache
def penalty_keys(kind: type[Penalty]) -> Mapping[str, str]:
    """A penalty's parameters by the names that a request gives them."""
    names = (field.name for field in fields(kind) if field.init and field.name not in _OWN)
    return {f"{kind.name}_{name}": name for name in names}


def require_spelled(keys: Iterable[str]) -> None:
    """Refuse keys that are one of our names but for case and dashes.

    Other processors' values come in the same table, so a key is refused only where nothing else can
    have been meant.
    """
    known = {*STOPPING, CUE, ATTENTION}.union(
        *({kind.name, *penalty_keys(kind)} for kind in PENALTIES)
    )
    for key in keys:
        name = key.casefold().replace("-", "_")
        if name in known and key not in known:
            raise InvalidValue("value", key, f"{name}: another spelling of it is not read", [name])


def require_known(values: Mapping[str, Any], more: Sequence[str]) -> None:
    """Refuse values of a server that are neither a penalty's nor in `more`."""
    names = [*more, *(name for kind in PENALTIES for name in (kind.name, *penalty_keys(kind)))]
    for key in values:
        if key not in names:
            raise InvalidValue("value", key, f"one of {', '.join(names)}", names)


def check_attention(values: Mapping[str, Any]) -> None:
    """Refuse a request's attention unless it is "full"."""
    require_spelled(values)
    if ATTENTION in values and values[ATTENTION] != FULL:
        allowed = f"{FULL!r}, or nothing: the method is the server's, --additional-config"
        raise InvalidValue(ATTENTION, values[ATTENTION], allowed, [FULL])


# ---------------------------------------------------------------- penalties


def _switch(field: str, value: object) -> bool:
    """JSON's own switch, or what an engine's HTTP server makes of it."""
    word = value.lower() if isinstance(value, str) else value
    if not isinstance(word, (str, int)) or word not in _SWITCHES:
        raise InvalidValue(field, value, "on or off")
    return _SWITCHES[word]


def penalty_of(
    kind: type[Penalty], values: Mapping[str, Any], default: Penalty | None = None
) -> Penalty | None:
    """The penalty that a request asks for, or None; `default` is the server's.

    A request that gives a parameter gives all: what is checked when it comes is what it gets,
    whatever the server was started with.
    """
    require_spelled(values)
    known = penalty_keys(kind)
    params: dict[str, Any] = {}
    for key, value in values.items():
        if key.startswith(f"{kind.name}_"):
            if key not in known:
                raise InvalidValue("value", key, f"one of {', '.join(known)}", list(known))
            is_switch = known[key] == "include_prompt"
            params[known[key]] = _switch(key, value) if is_switch else value
    _require_small(params)
    on = _switch(kind.name, values[kind.name]) if kind.name in values else None
    if on is False:
        return None
    if params:
        return kind(**params)
    return default or (kind() if on else None)


# ---------------------------------------------------------------- detectors


@dataclass(frozen=True)
class Stopping:
    """When and how a request is to be ended.

    The first verdict counts. `token` is forced in place of the end of text: it is a stop token of
    the request, so the engine reports it as the reason. `label` names the request in the log.
    """

    detectors: tuple[Detector, ...]
    token: int | None = None
    label: str = ""


def stopping_of(
    values: Mapping[str, Any],
    default: Stopping | None = None,
    *,
    cue: str = Answer.cue,
    trusted: bool = False,
) -> Stopping | None:
    """When a request is to be ended, or None for never.

    Args:
        values: all extra values of the request.
        default: the server's, where a request says nothing.
        cue: what `answer` gives the model. Its words must be in the vocabulary, which is known
            where the server starts and not where requests are checked.
        trusted: whether `stop_on` may name files and import paths; only who starts a server may.
    """
    require_spelled(values)
    for key in values:
        if key.startswith("stop_on") and key not in STOPPING:
            raise InvalidValue("value", key, f"one of {', '.join(STOPPING)}", STOPPING)
    token, label = values.get("stop_on_token"), str(values.get("stop_on_label", ""))
    if token is not None:
        token = check_int("stop_on_token", token, 0)
    if len(label) > LABEL:
        raise InvalidValue("stop_on_label", label[:20], f"at most {LABEL} characters")
    detectors = () if default is None else default.detectors
    if "stop_on" in values:
        detectors = _detectors(values["stop_on"], trusted)
    answer: dict[str, Any] = {"cue": cue}
    if "stop_on_tokens" in values:
        answer["tokens"] = values["stop_on_tokens"]
        if "stop_on" not in values or all(detector.action.ends for detector in detectors):
            allowed = "nothing without stop_on ...:answer"
            raise InvalidValue("stop_on_tokens", answer["tokens"], allowed)
    if not detectors:
        return None
    detectors = tuple(
        detector
        if detector.action.ends
        else replace(detector, on_stop={**detector.action.to_dict(), **answer})
        for detector in detectors
    )
    return Stopping(detectors, token, label)


def _detectors(text: object, trusted: bool) -> tuple[Detector, ...]:
    allowed = "a text such as recurrence(run=60):answer, or off"
    if not isinstance(text, str) or len(text) > CHARACTERS:
        raise InvalidValue("stop_on", str(text)[:60], f"{allowed}, up to {CHARACTERS} characters")
    if text.lower() in OFF:
        return ()
    try:
        specs = [DETECTORS.spec(entry, "stop_on") for entry in split(text, ";")]
        detectors = [_build(spec, trusted) for spec in specs]
    except (OverflowError, RecursionError) as error:
        raise InvalidValue("stop_on", text[:60], f"{allowed} ({error})") from error
    if len(detectors) > ENTRIES:
        raise InvalidValue("stop_on", text[:60], f"at most {ENTRIES} detectors")
    for detector in detectors:
        _require_acting(detector)
    return tuple(detectors)


def _build(spec: Spec, trusted: bool) -> Detector:
    if spec.action and spec.action not in ACTIONS:
        allowed = f"an action behind the colon: {', '.join(ACTING)}"
        raise InvalidValue("stop_on", str(spec), allowed, ACTING)
    if trusted:
        return build(opened(spec), "stop_on")
    if spec.is_file:
        allowed = "a detector's name: files are for who starts the server"
        raise InvalidValue("stop_on", spec.name, allowed)
    _require_harmless(spec)
    return build(spec, "stop_on")


@functools.cache
def served() -> tuple[str, ...]:
    """The detectors that a request may ask for; a server may be started with others."""
    return tuple(name for name in DETECTORS.shipped() if DETECTORS.find(name).served)


def _require_harmless(spec: Spec) -> None:
    if spec.name not in served():
        raise InvalidValue("stop_on", spec.name, "one of " + ", ".join(served()), served())
    params = spec.params
    if not isinstance(params.get("on_stop", "stop"), str):
        raise InvalidValue("on_stop", params["on_stop"], f"one of {', '.join(ACTING)}")
    if "codec" in params:
        names = [name for name in codecs.CODECS.shipped() if codecs.find(name).served]
        check_choice("codec", params["codec"], names)
    _require_small(params)
    inner = params.get("parts", [])
    inner = part_specs(inner) if isinstance(inner, str) else inner
    if not isinstance(inner, list):
        raise InvalidValue("parts", inner, "names joined by +, or a list")
    for part in inner:
        _require_harmless(spec_of(part, "parts"))


def _require_small(params: Mapping[str, Any]) -> None:
    """Refuse values that would keep everybody else waiting, or that no tensor can hold."""
    for name, value in params.items():
        if isinstance(value, (list, str)) and len(value) > ENTRIES:
            raise InvalidValue(name, f"{len(value)} of them", f"at most {ENTRIES}")
        least, most = LEAST.get(name, -LARGEST), MOST.get(name, LARGEST)
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, (int, float)) and not least <= number <= most:
                raise InvalidValue(name, value, f"a number from {least:,} to {most:,}")


def _require_acting(detector: Detector) -> None:
    action = detector.action.name
    if action not in ACTING:
        allowed = f"one of {', '.join(ACTING)}: an engine cannot {action}"
        raise InvalidValue("on_stop", action, allowed, ACTING)
    if detector.signals:
        allowed = "a detector of tokens alone: engines keep hidden states and logits to themselves"
        raise InvalidValue("stop_on", detector.name, allowed)
