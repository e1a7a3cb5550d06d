"""A configuration that a store has: data, of which nothing is imported that nobody typed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

from attention.registry import following
from attention.spelling import parse, paths, setting, values
from experiments.grid.config import Config
from lil.detectors import DETECTORS


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
        found.update(parse(entry, "method", "NAME").paths)
    for tables in (config.backend_params, config.penalty_params, config.detector_params):
        found |= {name for name in tables if ":" in name}
        found.update(paths(tables))
    return frozenset(found)


def paths_in(detectors: Iterable[str]) -> Iterator[str]:
    """The import paths of detectors as they are typed, and of what their brackets name."""
    for entry in detectors:
        yield from DETECTORS.spec(entry).paths


def paths_set(settings: Iterable[str]) -> Iterator[str]:
    """The import paths of `NAME.PARAMETER=VALUE,...`, as names and as values."""
    for text in settings:
        keys, raw = setting("detector_params." + text.removeprefix("detector_params."))
        yield from (key for key in keys if ":" in key)
        yield from paths(values(raw))
