"""Flags of a configuration, made from its declaration, and the configuration they ask for."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attention.errors import InvalidValue
from experiments.cli.parser import Parser, typed
from experiments.grid.config import Config
from experiments.grid.presets import (
    DEFAULTS,
    DEMO,
    default_preset,
    load,
    merged,
    parse_assignment,
    preset_names,
)


def add_config_flags(
    parser: Parser, without: Iterable[str] = (), own: Mapping[str, str] = MappingProxyType({})
) -> None:
    """The flags of the keys of a configuration, in groups, each with its default.

    Args:
        without: keys without a flag.
        own: defaults that the command has for itself, over every preset's.
    """
    skipped = set(without)
    group = parser.add_argument_group("where values come from (later ones win)")
    text = (
        f"{', '.join(preset_names())} or a TOML file (default: {DEMO}; with a model of your "
        f"own {DEFAULTS})"
    )
    group.add_argument("--preset", metavar="NAME|FILE", help=text)
    text = "any key of a preset, such as backend_params.quest.page=16"
    group.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)
    usual = load(DEMO), Config()
    groups: dict[str, Any] = {}
    for key in dataclasses.fields(Config):
        flag, name = _flag(key), key.metadata["group"]
        if flag is None or key.name in skipped:
            continue
        if name not in groups:
            groups[name] = parser.add_argument_group(name)
        default = own.get(key.name) or _default(key.name, usual)
        options: dict[str, Any] = {"metavar": key.metadata["metavar"]}
        if isinstance(key.default, bool):
            options = {"action": "store_const", "const": True}
        groups[name].add_argument(
            *dict.fromkeys((flag, f"--{key.name.replace('_', '-')}")),  # of lists both numbers
            dest=key.name,
            default=own.get(key.name),
            help=f"{key.metadata['help']} (default: {default})".replace("%", "%%"),
            **options,
        )


def _flag(key: dataclasses.Field[Any]) -> str | None:
    """A key's flag; that of a list is named in the singular, and tables have none."""
    if key.default is dataclasses.MISSING:
        return None
    name = key.name
    if isinstance(key.default, tuple):
        name = f"{name.removesuffix('ies')}y" if name.endswith("ies") else name.removesuffix("s")
    return f"--{name.replace('_', '-')}"


def _default(key: str, usual: Sequence[Config]) -> str:
    """The value a preset gives a key, and that of another preset where it differs."""
    ours, other = (typed(getattr(config, key)) for config in usual)
    same = ours == other or key in ("models", "datasets")
    return ours if same else f"{ours}; of your own {other}"


def config_from(args: argparse.Namespace, **fixed: Any) -> tuple[str, Config]:
    """The preset's name and the configuration that the flags of `add_config_flags` ask for.

    Args:
        fixed: keys the command decides itself, over everything else.
    """
    overrides: dict[str, Any] = {}
    for assignment in args.set:
        for key, value in parse_assignment(assignment).items():
            before = overrides.get(key)
            if before is not None and isinstance(value, dict):
                tables = (
                    [*before.values(), *value.values()] if isinstance(before, dict) else [before]
                )
                if not all(isinstance(table, dict) for table in tables):
                    allowed = f"one kind of value for {key}, which was set to {before!r} before"
                    raise InvalidValue("--set", assignment, allowed)
                value = merged(key, before, value)
            overrides[key] = value
    for declared in dataclasses.fields(Config):
        if (flag := getattr(args, declared.name, None)) is not None:
            overrides[declared.name] = flag
    overrides |= fixed
    preset = args.preset or default_preset(overrides)
    return preset, load(preset, overrides)
