"""The configuration of a sweep as it is asked for: defaults < preset < command line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention import spec as spelling
from attention.errors import InvalidValue
from attention.spec import Aliases, merge, setting
from experiments.grid.config import Config, check

if TYPE_CHECKING:
    from attention.registry import Registry


def preset_names() -> tuple[str, ...]:
    """The presets that ship with the package."""
    folder = resources.files("experiments") / "presets"
    return tuple(sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if _is_toml(p.name)))


def _is_toml(name: str) -> bool:
    return name.endswith(".toml")


def preset_text(name: str) -> str:
    """The TOML of a preset, by name or by the path of a file of one's own.

    Raises:
        InvalidValue: no such preset or file.
    """
    if _is_toml(name) or "/" in name:
        try:
            return Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidValue("preset", name, f"a readable TOML file ({error})") from error
    if name not in preset_names():
        allowed = f"one of {', '.join(preset_names())}, or a TOML file"
        raise InvalidValue("preset", name, allowed, preset_names())
    return (resources.files("experiments") / "presets" / f"{name}.toml").read_text("utf-8")


def load(preset: str, overrides: Mapping[str, object] | None = None) -> Config:
    """The configuration of a preset, changed by what the caller says.

    Tables (`backend_params`, `penalty_params`, `detector_params`) are merged method by method and
    key by key; every other override replaces the preset's value.

    Raises:
        InvalidValue: an unknown preset or key, or a value that cannot be used.
    """
    try:
        raw = tomllib.loads(preset_text(preset))
    except InvalidValue:  # there is none of that name
        raise
    except (ValueError, RecursionError) as error:  # TOML that is none, or a number too long
        raise InvalidValue("preset", preset, f"valid TOML ({error})") from error
    values = check(raw, f"preset {preset}")
    changes = check(overrides or {}, "the command line")
    _choose(values, changes)
    for key, given in changes.items():
        tables = isinstance(given, dict)
        values[key] = merged(key, values.get(key, {}), given) if tables else given
    if "detectors" in values:
        values["detectors"] = _with_opened(values["detectors"])
    return Config(**values)


def _choose(values: dict[str, Any], changes: dict[str, Any]) -> None:
    """The first so many problems or a sample: what is asked for later takes the other's place."""
    for asked in (values, changes):
        if asked.get("sample") and asked.get("limit"):
            raise InvalidValue("sample", asked["sample"], "--sample or --limit, not both")
        if asked.get("sample"):
            asked["limit"] = None
        elif "limit" in asked:
            asked["sample"] = None


def _with_opened(detectors: tuple[str, ...]) -> tuple[str, ...]:
    """Detectors as they were asked for, with name and parameters where a file stands.

    So a sweep's manifest says what was used, wherever the file may be later.

    Raises:
        InvalidValue: a file that cannot be read, or names no detector that there is.
    """
    from lil.detectors import DETECTORS, opened

    specs = ((entry, DETECTORS.spec(entry)) for entry in detectors)
    return tuple(str(opened(spec)) if spec.is_file else entry for entry, spec in specs)


def merged(key: str, table: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """A table of parameters by method with what was said later.

    Args:
        key: of the configuration, such as "detector_params".
        table, later: parameters by the name of what has them.
    """
    both = ((name, table[name], later[name]) for name in later if name in table)
    return {**table, **later, **{name: merge(a, b, _aliases(key, name)) for name, a, b in both}}


def _aliases(key: str, name: str) -> Aliases:
    """Parameters that say the same; none of what is not there, which is told where it is made."""
    from attention.methods import METHODS
    from lil.detectors import DETECTORS
    from lil.penalties import PENALTIES

    kinds: dict[str, Registry[Any]] = {
        "backend_params": METHODS,
        "penalty_params": PENALTIES,
        "detector_params": DETECTORS,
    }
    try:
        return kinds[key].find(name).aliases if key in kinds else ()
    except InvalidValue:
        return ()


def parse_assignment(text: str) -> dict[str, Any]:
    """`key=value` as typed after --set, nested by dots: `backend_params.quest.page=16`.

    A method may be an import path: `backend_params.package.module:Class.page=16`.

    Raises:
        InvalidValue: no equals sign, or a dotted path through a key that is no table.
    """
    keys, raw = setting(text)
    if len(keys) == 2:
        kinds = ("backend", "penalty", "detector", "action")
        allowed = "KEY=VALUE; a parameter is " + " or ".join(
            f"{kind}_params.{'.'.join(keys)}=" for kind in kinds
        )
        raise InvalidValue("--set", text, allowed)
    if len(keys) not in (1, 3):
        raise InvalidValue("--set", text, "KEY=VALUE, such as backend_params.quest.page=16")
    given = spelling.value(raw)
    return {keys[0]: given} if len(keys) == 1 else {keys[0]: {keys[1]: {keys[2]: given}}}
