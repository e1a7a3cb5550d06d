"""What comes from outside, brought to its type: what does not fit is an `InvalidValue`.

Files of a store and values of a configuration are decoded by msgspec against types that are written
down once. Its errors say where a value stands; here they become the message that the rest of the
project gives, with the nearest match.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from attention.errors import InvalidValue

T = TypeVar("T")

#: Numbers of things: large enough for any, small enough to be worked with.
Count = Annotated[int, Meta(ge=1, le=10**9)]
Natural = Annotated[int, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1)]

#: Brings the value of a key to its type, or raises `InvalidValue`.
Check: TypeAlias = Callable[[str, object], Any]

_PATH = re.compile(r"^(?P<text>.*?)(?: - at `(?:key` in `)?(?P<path>[^`]*)`)?$", re.DOTALL)
_FIELD = re.compile(r"Object (?P<what>missing required|contains unknown) field `(?P<name>[^`]*)`")
_STEP = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<index>\d+)\]")


def typed(kind: Any, allowed: str) -> Check:
    """The check that brings what a user typed to a type; numbers may be texts.

    Args:
        kind: the type, with its constraints.
        allowed: what a refusal says is allowed.
    """

    def check(key: str, value: object) -> Any:
        try:
            return msgspec.convert(value, kind, strict=False)
        except (msgspec.ValidationError, UnicodeError) as error:  # half a character has no bytes
            raise InvalidValue(key, shown(value), allowed) from error

    return check


def unless(check: Check, *nothing: object) -> Check:
    """A check that takes None and these words for it as well."""
    return lambda key, value: None if value in (None, *nothing) else check(key, value)


def one_of(*allowed: str) -> Check:
    """The check that a value is one of these words."""

    def check(key: str, value: object) -> str:
        if value not in allowed:
            raise InvalidValue(key, shown(value), f"one of {', '.join(allowed)}", allowed)
        return str(value)

    return check


def loads(data: bytes | str, what: str) -> Any:
    """JSON from outside in plain values.

    Raises:
        InvalidValue: it is none, or is nested too deeply.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InvalidValue(what, shown(data), f"JSON ({error})") from error


def checked(values: object, kind: type[T], what: str) -> T:
    """Plain values of a file as the type that says what the file holds.

    Args:
        values: from `loads`.
        kind: what they should be.
        what: the file, named in the message.

    Raises:
        InvalidValue: a field is missing, has another type or is out of range.
    """
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise _refused(error, values, what) from error
    except UnicodeError as error:
        raise InvalidValue(what, shown(values), f"whole characters ({error})") from error


def read(data: bytes, kind: type[T], what: str) -> T:
    """`checked` of `loads`, at once.

    Raises:
        InvalidValue: it is no JSON, or not of this type.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return checked(loads(data, what), kind, what)  # which says more


def shown(value: object) -> object:
    """A value short enough for a message; Python itself refuses to print the largest numbers."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return value if len(text) <= 200 else f"{text[:100]}..."


def _refused(error: msgspec.ValidationError, values: object, what: str) -> InvalidValue:
    match = _PATH.match(str(error))
    assert match is not None  # it matches any text
    path = (match["path"] or "$").removeprefix("$")
    place = f"{path.removeprefix('.')} of {what}" if path else what
    at = _at(values, path)
    field = _FIELD.match(match["text"])
    if field is None or not isinstance(at, Mapping):
        return InvalidValue(place, shown(at), _in_words(match["text"]))
    here = [str(key) for key in at]
    allowed = f"a field {field['name']!r}"
    if field["what"] == "contains unknown":
        return InvalidValue(f"field in {place}", field["name"], "no field of this name")
    # The field that is there by a name like it, if there is one, is the one to mend.
    nearest = InvalidValue("", field["name"], "", here).nearest
    if nearest is None:
        return InvalidValue(place, shown(", ".join(here)), allowed)
    return InvalidValue(f"field in {place}", nearest, allowed, [field["name"]])


def _at(values: object, path: str) -> object:
    """What stands at a path such as `.plan.cells[0].dataset`; as far as it can be followed."""
    for step in _STEP.finditer(path):
        if step["key"] is not None and isinstance(values, Mapping) and step["key"] in values:
            values = values[step["key"]]
        elif step["index"] is not None and isinstance(values, Sequence):
            values = values[int(step["index"])]
        else:
            break
    return values


def _in_words(text: str) -> str:
    """The library's "Expected `int` >= 1, got `str`" in the words of our messages."""
    text = text.partition(", got ")[0].replace("`", "")
    return text.removeprefix("Expected ")
