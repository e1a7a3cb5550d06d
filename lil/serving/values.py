"""What a request asks for, from the flat values that come with it.

Engines pass a request's extra values through as they are, over HTTP as texts and numbers alone.
A penalty has a switch, `lz`, and its parameters behind it, `lz_alpha`; a parameter switches on,
too. `stop_on` names detectors as the command line does, `recurrence(run=60):answer`, or holds what
`lil calibrate` wrote.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from attention.errors import InvalidValue, check_choice, check_int
from attention.spec import Spec, split
from lil.compression import codecs
from lil.detectors import (
    ACTIONS,
    CALIBRATED,
    DETECTORS,
    Answer,
    Detector,
    build,
    calibrated,
    opened,
    part_specs,
    spec_of,
)
from lil.penalties import Penalty
from lil.serving.keys import STOPPING, penalty_keys, require_spelled

#: What an engine can do: it cannot go back, and its attention is its own.
ACTING = tuple(name for name, kind in ACTIONS.items() if not kind.rewinds and not kind.dense)

#: What a request may ask for at most: all who share a server wait for it. Numbers without a bound
#: of their own have `LARGEST`.
LARGEST = 1_000_000_000
MOST: Mapping[str, int] = {
    "window": 65_536, "buffer": 256, "longest": 256, "k": 256, "max_period": 4096,
    "strength": 1000, "multiplier": 1000, "base": 1000, "alpha": 1000,
}  # fmt: skip
LEAST: Mapping[str, int] = {"f": 10, "strength": -1000}
ENTRIES, CHARACTERS, LABEL = 64, 4096, 256

#: What `stop_on` says where nothing is to be stopped.
OFF = ("off", "false")

_ON: Mapping[object, bool] = {
    word: on for on, words in ((True, ("on", "true", 1)), (False, ("off", "false", 0)))
    for word in words
}  # fmt: skip


def _switch(field: str, value: object) -> bool:
    """A switch; JSON's own, or what an engine's HTTP server makes of it.

    Raises:
        InvalidValue: it is none.
    """
    word = value.lower() if isinstance(value, str) else value
    if not isinstance(word, (str, int)) or word not in _ON:
        raise InvalidValue(field, value, "on or off")
    return _ON[word]


def penalty_of(
    kind: type[Penalty], given: Mapping[str, Any], default: Penalty | None = None
) -> Penalty | None:
    """The penalty that a request asks for, or None.

    A request that gives a parameter says all of them, so that what is checked when it comes is what
    it gets, whatever the server was started with.

    Args:
        kind: its class; values that begin with the class's name are its own.
        given: all extra values of the request.
        default: what the server uses where a request gives no parameter.

    Raises:
        InvalidValue: an unknown parameter, a value it refuses, or a name that is nearly one of
            those a request may give.
    """
    require_spelled(given)
    known = penalty_keys(kind)
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key.startswith(f"{kind.name}_"):
            if key not in known:
                raise InvalidValue("value", key, f"one of {', '.join(known)}", list(known))
            flag = known[key] == "include_prompt"
            values[known[key]] = _switch(key, value) if flag else value
    _require_small(values)
    on = _switch(kind.name, given[kind.name]) if kind.name in given else None
    if on is False:
        return None
    if values:
        return kind(**values)
    return default or (kind() if on else None)


@dataclass(frozen=True)
class Stopping:
    """When and how a request is to be ended.

    Args:
        detectors: the first verdict counts.
        token: forced to end the request, in place of the end of text; one of its stop tokens, so
            that the engine gives it as the reason.
        label: the caller's name for the request, in what is told of it.
        asked: whether the request said so itself, rather than the server for all.
    """

    detectors: tuple[Detector, ...]
    token: int | None = None
    label: str = ""
    asked: bool = True


def stopping_of(
    given: Mapping[str, Any],
    default: Stopping | None = None,
    *,
    cue: str = Answer.cue,
    trusted: bool = False,
) -> Stopping | None:
    """When a request is to be ended, or None: never.

    Args:
        given: all extra values of the request: `stop_on`, detectors as on the command line, joined
            by semicolons, or what `lil calibrate` wrote, or "off"; `stop_on_tokens`, those of the
            action `answer`; `stop_on_token` and `stop_on_label`, see `Stopping`.
        default: what the server uses where a request says nothing.
        cue: what `answer` gives the model. Its words must be in the vocabulary, which is known
            where the server starts and not where requests are checked.
        trusted: whether `stop_on` may name files and import paths, which is for who starts the
            server alone.

    Raises:
        InvalidValue: an unknown or misspelt value, detector, parameter or action, one that an
            engine cannot carry out, a detector of more than tokens, or something to be read that is
            not trusted.
    """
    require_spelled(given)
    for key in given:
        if key.startswith("stop_on") and key not in STOPPING:
            raise InvalidValue("value", key, f"one of {', '.join(STOPPING)}", STOPPING)
    token, label = given.get("stop_on_token"), given.get("stop_on_label", "")
    if token is not None:
        token = check_int("stop_on_token", token, 0)
    if len(str(label)) > LABEL:
        raise InvalidValue("stop_on_label", str(label)[:20], f"at most {LABEL} characters")
    detectors = () if default is None else default.detectors
    if "stop_on" in given:
        detectors = _detectors(given["stop_on"], trusted)
    own: dict[str, Any] = {"cue": cue}
    if "stop_on_tokens" in given:
        own["tokens"] = given["stop_on_tokens"]
        if "stop_on" not in given or all(one.action.ends for one in detectors):
            raise InvalidValue(
                "stop_on_tokens", own["tokens"], "nothing without stop_on ...:answer"
            )
    if not detectors:
        return None
    answering = ({**one.action.to_dict(), **own} for one in detectors)
    detectors = tuple(
        one if one.action.ends else replace(one, on_stop=action)
        for one, action in zip(detectors, answering, strict=True)
    )
    return Stopping(detectors, token, str(label), asked="stop_on" in given)


def _detectors(given: object, trusted: bool) -> tuple[Detector, ...]:
    allowed = "a text such as recurrence(run=60):answer, or off"
    if not isinstance(given, str) or len(given) > CHARACTERS:
        raise InvalidValue("stop_on", str(given)[:60], f"{allowed}, up to {CHARACTERS} characters")
    if given.lower() in OFF:
        return ()
    try:
        if given.lstrip().startswith("{"):
            allowed = f"a JSON object with format = {CALIBRATED} and a detector"
            specs = [calibrated(given, "stop_on", given[:60], allowed)]
        else:
            specs = [DETECTORS.spec(entry, "stop_on") for entry in split(given, ";")]
        found = [_made(spec, trusted) for spec in specs]
    except (OverflowError, RecursionError) as error:
        raise InvalidValue("stop_on", given[:60], f"{allowed} ({error})") from error
    if len(found) > ENTRIES:
        raise InvalidValue("stop_on", given[:60], f"at most {ENTRIES} detectors")
    return tuple(map(_acting, found))


def _made(spec: Spec, trusted: bool) -> Detector:
    """A detector that is asked for.

    Raises:
        InvalidValue: unknown, or nothing that a request may ask for: import paths and names of
            files are read where a detector is made.
    """
    if spec.action and spec.action not in ACTIONS:
        allowed = f"an action behind the colon: {', '.join(ACTING)}"
        raise InvalidValue("stop_on", str(spec), allowed, ACTING)
    if trusted:
        return build(opened(spec), "stop_on")
    if spec.is_file:
        allowed = "a detector's name: files are for who starts the server, or send its text"
        raise InvalidValue("stop_on", spec.name, allowed)
    _require_harmless(spec)
    return build(spec, "stop_on")


@functools.cache
def served() -> tuple[str, ...]:
    """What a request may ask for; a server may be started with others."""
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
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, (int, float)) and not least <= one <= most:
                raise InvalidValue(name, value, f"a number from {least:,} to {most:,}")


def _acting(detector: Detector) -> Detector:
    if detector.action.name not in ACTING:
        allowed = f"one of {', '.join(ACTING)}: an engine cannot {detector.action.name}"
        raise InvalidValue("on_stop", detector.action.name, allowed, ACTING)
    if detector.signals:
        allowed = "a detector of tokens alone: engines keep hidden states and logits to themselves"
        raise InvalidValue("stop_on", detector.name, allowed)
    return detector
