"""How a method, a detector, a penalty or a codec is typed: one grammar, read and written here.

    entry     NAME   NAME(PARAMETER=VALUE, ...)   and behind either, where there are any, :ACTION
    NAME      a name, package.module:Class, or a file of parameters, FILE.json
    list      ENTRY,ENTRY   or ENTRY+ENTRY; brackets and quotes hold their contents together
    setting   KEY=VALUE   KEY.NAME.PARAMETER=VALUE
    VALUE     as TOML has it, else a text

It is the same in flags, presets, calibrated files, stores and requests. Text alone: nothing is
looked up or made here, which is for the registries.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attention.errors import InvalidValue

#: What `package.module:Class` looks like.
IMPORT_PATH = re.compile(r"[^\W\d]\w*(?:\.\w+)*:[^\W\d]\w*(?:\.\w+)*")

#: The ending of files that hold a name and parameters.
FILE = ".json"

#: What no TOML can be: wrong characters, or brackets nested too deeply.
_NO_TOML = (ValueError, RecursionError)

#: Parameters that say the same in other words, in groups: one of them takes the others' place.
Aliases = Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Spec:
    """A name, import path or file, with parameters, and the action behind a verdict, if any."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    action: str = ""

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Spec:
        """The same of a table that has the `name` among the parameters."""
        params = dict(table)
        return cls(str(params.pop("name", None)), params)

    @property
    def is_file(self) -> bool:
        """Whether it names a file that holds name and parameters."""
        return self.name.endswith(FILE)

    @property
    def paths(self) -> Iterator[str]:
        """The import paths in it, as name and in parameters."""
        if ":" in self.name:
            yield self.name
        yield from paths(self.params)

    def __str__(self) -> str:
        """As one types it: `parse` gives it back."""
        inside = f"({_toml(self.params)[1:-1]})" if self.params else ""
        return self.name + inside + (f":{self.action}" if self.action else "")


def parse(
    text: str, kind: str, example: str, actions: Collection[str] = (), shipped: Collection[str] = ()
) -> Spec:
    """What an entry asks for; `kind` and `example` are for messages.

    `guardian:answer` names an action, `mine:Detector` an import path, `mine:Detector:answer` both.

    Args:
        actions: names that may follow the last colon.
        shipped: names that are no modules, so that what follows their colon is an action.

    Raises:
        InvalidValue: brackets that hold something else than parameters.
    """
    head, action = _split_action(text.strip(), actions, shipped) if actions else (text.strip(), "")
    name, bracket, rest = head.partition("(")
    if not bracket or head.endswith(FILE):
        return Spec(head, {}, action)
    try:
        if not rest.endswith(")"):
            raise ValueError
        params = _toml_value(f"{{{rest[:-1]}}}")
    except _NO_TOML as error:
        allowed = f"NAME or NAME(PARAMETER=VALUE), such as {example}"
        raise InvalidValue(kind, text, allowed) from error
    return Spec(name.strip(), params, action)


def _split_action(text: str, actions: Collection[str], shipped: Collection[str]) -> tuple[str, str]:
    head, bracket, tail = text.rpartition(")")
    if bracket and tail[:1] in ("", ":"):  # text in brackets may have colons of its own
        return head + bracket, tail[1:]
    name, colon, action = text.rpartition(":")
    # Behind a name that ships a wrong action is an error; other names may be those of modules too.
    has_action = ":" in name or action in actions or name in shipped or name.endswith(FILE)
    return (name, action) if colon and has_action else (text, "")


def split(text: str, mark: str = ",") -> list[str]:
    """The parts of `a,b(c=1,d="2,3")`, where brackets and quotes hold together."""
    parts, depth, quote, escaped = [""], 0, "", False
    for character in text:
        if quote:
            quote = "" if character == quote and not escaped else quote
            escaped = quote == '"' and character == "\\" and not escaped
        elif depth > 0 and character in "\"'":  # elsewhere it is a character of a name
            quote = character
        else:
            depth += (character in "([{") - (character in ")]}")
        if character == mark and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def setting(text: str) -> tuple[list[str], str]:
    """Dotted keys of `key.key=value`, an import path being one, and the value; else no keys."""
    path, equals, raw = text.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        return [], raw
    if (at := next((i for i, key in enumerate(keys) if ":" in key), 0)) > 1:
        keys = [keys[0], ".".join(keys[1 : at + 1]), *keys[at + 1 :]]
    return keys, raw


def value(raw: str) -> Any:
    """The value behind an equals sign: what TOML has, else the text."""
    try:
        return _toml_value(raw)
    except _NO_TOML:
        return raw.strip()


def values(raw: str) -> list[Any]:
    """The values of `a,b,c`: numbers, texts, or whatever TOML has."""
    try:
        return list(_toml_value(f"[{raw}]"))
    except _NO_TOML:
        return [_number(part) for part in split(raw) if part]


def _toml_value(text: str) -> Any:
    """The TOML value that a whole text is."""
    if "\n" in text or "\r" in text:
        raise ValueError("a value is one line")
    return tomllib.loads(f"value = {text}")["value"]


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def merge(
    params: Mapping[str, Any], own: Mapping[str, Any], aliases: Aliases = ()
) -> dict[str, Any]:
    """Parameters with others over them; a later alias takes the place of an earlier one."""
    replaced = {name for group in aliases if not own.keys().isdisjoint(group) for name in group}
    return {**{key: params[key] for key in params if key not in replaced}, **own}


def paths(value: object) -> Iterator[str]:
    """The import paths in a value, however deep: by themselves, in brackets, or joined by +."""
    if isinstance(value, str):
        for part in split(value, "+"):
            try:
                spec = parse(part, "", "")
            except InvalidValue:  # a text of another kind
                continue
            if IMPORT_PATH.fullmatch(spec.name):
                yield spec.name
            yield from paths(spec.params)
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from paths(item)


def _toml(item: Any) -> str:
    """A value as TOML has it in one line; a table without what is None, as TOML knows no null."""
    if isinstance(item, Mapping):
        pairs = ((_key(key), _toml(x)) for key, x in item.items() if x is not None)
        return f"{{{', '.join(f'{key} = {x}' for key, x in pairs)}}}"
    if isinstance(item, list | tuple):
        return f"[{', '.join(map(_toml, item))}]"
    # JSON's pairs for large characters are none in TOML.
    return json.dumps(item, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    """A key as it is, or in quotes where it could end the list around it."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)
