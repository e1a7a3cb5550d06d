"""A configuration that a store has: data, of which nothing is imported that nobody typed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

from attention.identity import IMPORT_PATH
from attention.registry import following, split_parameters
from experiments.grid.config import Config, split_setting
from experiments.grid.detector_grid import parse_values
from experiments.grid.plan import split_action


@dataclass(frozen=True)
class StoredConfig(Config):
    """A configuration as a manifest has it.

    `load` holds the import paths that may be followed, as somebody typed them. What is not here is
    left out when detectors are built, and refused where a method or a penalty is asked for.
    """

    typed: ClassVar[bool] = False
    load: frozenset[str] = frozenset()

    def following(self) -> AbstractContextManager[None]:
        """Only import paths that were typed are followed."""
        return following(self.load)

    def follows(self, path: str) -> bool:
        """Whether somebody typed this import path."""
        return path in self.load


def import_paths(config: Config) -> frozenset[str]:
    """Every import path in a configuration that somebody typed."""
    found = set(paths_in(config.detectors))
    for entry in (*config.backends, *config.penalties):
        found |= {path for path in _split(entry) if ":" in path}
    for tables in (config.backend_params, config.penalty_params, config.detector_params):
        found |= {name for name in tables if ":" in name}
        found |= set(_inside(tables))
    return frozenset(found)


def paths_in(detectors: Iterable[str]) -> Iterator[str]:
    """The import paths of detectors as they are typed, and of what their brackets name."""
    for entry in detectors:
        given, _ = split_action(entry)
        yield from (path for path in _split(given) if ":" in path)


def paths_set(settings: Iterable[str]) -> Iterator[str]:
    """The import paths of `NAME.PARAMETER=VALUE,...`, as names and as values."""
    for text in settings:
        keys, raw = split_setting("detector_params." + text.removeprefix("detector_params."))
        yield from (key for key in keys if ":" in key)
        yield from _inside(parse_values(raw))


def _split(entry: str) -> list[str]:
    name, params = split_parameters(entry)
    return [name, *_inside(params)]


def _inside(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from (one.strip() for one in value.split("+") if IMPORT_PATH.fullmatch(one.strip()))
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _inside(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _inside(one)
