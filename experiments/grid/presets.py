"""The configuration of a sweep: base < preset < command line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention import spec
from attention.errors import InvalidValue
from attention.spec import Aliases, merge, setting
from experiments.grid.config import Config, check
from experiments.grid.models import REASONER

if TYPE_CHECKING:
    from attention.registry import Registry


#: The preset on which sweeps of the project's own model are based, and the name of none.
DEMO, DEFAULTS = "demo", "defaults"


def preset_names() -> tuple[str, ...]:
    """The presets that ship with the package."""
    folder = resources.files("experiments") / "presets"
    names = (path.name for path in folder.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def preset_text(name: str) -> str:
    """The TOML of a preset, by name or by the path of a file of one's own."""
    if name.endswith(".toml") or "/" in name:
        try:
            return Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidValue("preset", name, f"a readable TOML file ({error})") from error
    if name not in preset_names():
        allowed = f"one of {', '.join(preset_names())}, or a TOML file"
        raise InvalidValue("preset", name, allowed, preset_names())
    return (resources.files("experiments") / "presets" / f"{name}.toml").read_text("utf-8")


def load(preset: str, overrides: Mapping[str, object] | None = None) -> Config:
    """The configuration of a preset, changed by the caller's values.

    There is one base for the command line, TOML files and Python: the demo's settings for the
    project's own model, the defaults of `Config` for others.

    Tables (`backend_params`, `penalty_params`, `detector_params`) are merged method by method and
    key by key; every other override replaces the preset's value.
    """
    values = {} if preset == DEFAULTS else _read(preset)
    changes = check(overrides or {}, "the command line")
    layers = [values, changes]
    if preset != DEMO and default_preset({**values, **changes}) == DEMO:
        layers.insert(0, _read(DEMO))
    merged_values: dict[str, Any] = {}
    for layer in layers:
        _choose(layer)
        for key, value in layer.items():
            tables = isinstance(value, dict)
            merged_values[key] = merged(key, merged_values.get(key, {}), value) if tables else value
    if "detectors" in merged_values:
        merged_values["detectors"] = _with_opened(merged_values["detectors"])
    return Config(**merged_values)


def default_preset(values: Mapping[str, object]) -> str:
    """The preset on which values are based: the demo, or none for a model of the user's own."""
    models = check({"models": values.get("models", REASONER)}, "the command line")["models"]
    return DEMO if set(models) == {REASONER} else DEFAULTS


def _read(preset: str) -> dict[str, Any]:
    """The checked values of a preset."""
    text = preset_text(preset)
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOML that is none, or a number too long
        raise InvalidValue("preset", preset, f"valid TOML ({error})") from error
    return check(raw, f"preset {preset}")


def _choose(layer: dict[str, Any]) -> None:
    """Either `limit` or `sample`: the later layer's choice replaces the earlier one's."""
    if layer.get("sample") and layer.get("limit"):
        raise InvalidValue("sample", layer["sample"], "--sample or --limit, not both")
    if layer.get("sample"):
        layer["limit"] = None
    elif "limit" in layer:
        layer["sample"] = None


def _with_opened(detectors: tuple[str, ...]) -> tuple[str, ...]:
    """Detectors as typed, with name and parameters in place of a file."""
    from lil.detectors import DETECTORS, opened

    specs = ((entry, DETECTORS.spec(entry)) for entry in detectors)
    return tuple(str(opened(parsed)) if parsed.is_file else entry for entry, parsed in specs)


def merged(key: str, table: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """A table of parameters by method, such as `detector_params`, changed by a later one."""
    if table.keys().isdisjoint(later):
        return {**table, **later}
    from attention.methods import METHODS
    from lil.detectors import DETECTORS
    from lil.penalties import PENALTIES

    kinds: dict[str, Registry[Any]] = {
        "backend_params": METHODS,
        "penalty_params": PENALTIES,
        "detector_params": DETECTORS,
    }
    both = {}
    for name in table.keys() & later.keys():
        aliases: Aliases = ()
        with suppress(InvalidValue):  # an unknown name is refused where the method is built
            aliases = kinds[key].find(name).aliases if key in kinds else ()
        both[name] = merge(table[name], later[name], aliases)
    return {**table, **later, **both}


def parse_assignment(text: str) -> dict[str, Any]:
    """`key=value` as typed after --set, nested by dots: `backend_params.quest.page=16`."""
    keys, raw = setting(text)
    if len(keys) not in (1, 3):
        raise InvalidValue("--set", text, "KEY=VALUE, such as backend_params.quest.page=16")
    value = spec.value(raw)
    return {keys[0]: value} if len(keys) == 1 else {keys[0]: {keys[1]: {keys[2]: value}}}
