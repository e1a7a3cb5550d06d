"""Detectors for every combination of the parameters given on a command line."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attention.errors import InvalidValue
from experiments.grid.config import Config, split_setting
from experiments.grid.plan import with_params

if TYPE_CHECKING:
    from lil import Detector

#: Values to try, by detector and parameter.
Choices = dict[str, dict[str, list[Any]]]


def parse_choice(text: str, config: Config) -> tuple[str, str, list[Any]]:
    """Detector, parameter and values of `NAME.PARAMETER=VALUE,...`.

    Args:
        text: as typed.
        config: of the sweep, whose parameters the parts of a detector (`a+b`) have.

    Raises:
        InvalidValue: another form, or no value.
    """
    keys, raw = split_setting("detector_params." + text.strip().removeprefix("detector_params."))
    values = parse_values(raw)
    if len(keys) != 3 or not values:
        raise InvalidValue("--set", text, "NAME.PARAMETER=VALUE,..., as budget.tokens=200,400")
    if keys[2] == "parts":
        values = [with_params(config, one) if isinstance(one, str) else one for one in values]
    return keys[1], keys[2], values


def parse_values(raw: str) -> list[Any]:
    """The values of `a,b,c`: numbers, texts, or whatever TOML has."""
    try:
        return list(tomllib.loads(f"values = [{raw}]")["values"])
    except tomllib.TOMLDecodeError:
        return [_value(part.strip()) for part in raw.split(",") if part.strip()]


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def combined(
    names: Sequence[str], own: Mapping[str, Mapping[str, Any]], choices: Choices
) -> list[Detector]:
    """Each named detector with every combination of the values to try, equal ones once.

    Args:
        names: of detectors, in order.
        own: parameters by detector where nothing else is asked for.
        choices: values to try.

    Raises:
        InvalidValue: an unknown detector or parameter, a value it refuses, or values for a detector
            that is not named.
    """
    from lil import detectors

    for name in (*names, *choices):
        detectors.find(name)
    for name, parameters in choices.items():
        if name not in names:
            what = f"{name}.{next(iter(parameters))}"
            raise InvalidValue("--set", what, f"a parameter of {', '.join(names)}", names)
    found = []
    for name in names:
        tried = choices.get(name, {})
        for values in itertools.product(*tried.values()):
            # A threshold and a rate say the same: what is tried stands, not the other.
            other = {"t": "rate", "rate": "t"}
            kept = {k: v for k, v in own.get(name, {}).items() if other.get(k) not in tried}
            given = {**kept, **dict(zip(tried, values, strict=True))}
            found.append(detectors.get(name, **given))
    # The same parameters twice would be two rows of the same name.
    return list({repr((d.name, sorted(d.params().items()))): d for d in found}.values())
