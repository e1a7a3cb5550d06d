"""A stored configuration, and its methods, penalties and models built again.

A store is data: nothing is imported that the user did not type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from attention.errors import InvalidValue
from attention.identity import version_of
from attention.registry import Registry, following, parameters
from attention.spec import parse, paths
from experiments.grid.config import Config
from experiments.grid.identity import Configuration
from lil.detectors import DETECTORS

if TYPE_CHECKING:
    from attention import Backend
    from experiments.grid.models import LoadedModel
    from experiments.grid.plan import Penalties


@dataclass(frozen=True)
class StoredConfig(Config):
    """A configuration as a manifest has it.

    `load` holds the import paths that the user typed, which alone are followed.
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
    typed = {path for entry in config.detectors for path in DETECTORS.spec(entry).paths}
    for entry in (*config.backends, *config.penalties):
        typed.update(parse(entry, "method", "NAME").paths)
    for tables in (config.backend_params, config.penalty_params, config.detector_params):
        typed |= {name for name in tables if ":" in name}
        typed.update(paths(tables))
    return frozenset(typed)


def backend_of(config: Config, configuration: Configuration) -> Backend:
    """The backend that a configuration names, with the parameters it was decoded with."""
    from attention.methods import METHODS

    with config.following():
        return cast("Backend", _rebuilt(METHODS, config, config.backends, configuration.backend))


def penalties_of(config: Config, configuration: Configuration) -> Penalties:
    """The penalties that a configuration names, with the parameters it was decoded with."""
    from lil.penalties import PENALTIES

    with config.following():
        return tuple(
            _rebuilt(PENALTIES, config, config.penalties, table)
            for table in configuration.penalties
        )


def _rebuilt(
    registry: Registry[Any], config: Config, typed: Sequence[str], table: Mapping[str, Any]
) -> Any:
    """What a table describes; a class of an import path is found by the path that was typed."""
    params = dict(table)
    name = params.pop("name")
    if ":" in name:
        raise InvalidValue("name of a method", name, "a name, which has no colon")
    bare = (entry.partition("(")[0].strip() for entry in typed)
    import_paths = (path for path in bare if ":" in path and config.follows(path))
    path = next((path for path in import_paths if registry.find(path).name == name), name)
    kind = registry.find(path)
    if "version" not in (parameter.name for parameter in parameters(kind)):
        decoded, here = params.pop("version", 1), version_of(kind)
        if decoded != here:
            allowed = f"{here}: another version of {name} decoded these runs"
            raise InvalidValue("version", decoded, allowed)
    return registry.get(path, **params)


def model_of(
    config: Config, configuration: Configuration, shelf: dict[str, LoadedModel]
) -> LoadedModel:
    """The model that a configuration was decoded with."""
    from experiments.grid import models

    loaded = shelf.get(configuration.model_digest)
    if loaded is None:
        source = models.find(configuration.model, config.revision, weights=config.weights)
        if source.digest != configuration.model_digest:
            allowed = (
                f"the weights that the run was decoded with ({configuration.model_digest[:12]})"
            )
            raise InvalidValue("model", configuration.model, allowed)
        device = models.resolve_device(config.device)
        loaded = models.load(source, configuration.dtype, device)
        shelf[configuration.model_digest] = loaded
    return loaded
