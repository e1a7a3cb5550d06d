"""Values from outside, brought to their types by msgspec; others are refused by `InvalidValue`."""

from __future__ import annotations

from collections.abc import Callable
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


def typed(kind: Any, allowed: str) -> Check:
    """The check that brings what a user typed to a type; numbers may be texts."""

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
    """JSON from outside in plain values."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InvalidValue(what, shown(data), f"JSON ({error})") from error


def checked(values: object, kind: type[T], what: str) -> T:
    """Plain values of a file as the type that says what the file holds."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise InvalidValue(what, shown(values), f"a file of this version ({error})") from error
    except UnicodeError as error:
        raise InvalidValue(what, shown(values), f"whole characters ({error})") from error


def read(data: bytes, kind: type[T], what: str) -> T:
    """`checked` of `loads`, at once."""
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
