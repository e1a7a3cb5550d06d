"""Methods and penalties again from what a cell says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from attention.errors import InvalidValue
from attention.identity import version_of
from attention.registry import parameters
from experiments.grid.config import Config
from experiments.grid.identity import Cell

if TYPE_CHECKING:
    from attention import Backend
    from experiments.grid.plan import Penalties


def backend_of(config: Config, cell: Cell) -> Backend:
    """The backend that a cell names, with the parameters it was decoded with.

    Raises:
        InvalidValue: it is not installed here, or no longer takes these parameters.
    """
    from attention import methods

    with config.following():
        return cast("Backend", _rebuilt(methods, config, config.backends, cell.backend))


def penalties_of(config: Config, cell: Cell) -> Penalties:
    """The penalties that a cell names, with the parameters it was decoded with.

    Raises:
        InvalidValue: one is not installed here, or no longer takes these parameters.
    """
    from lil import penalties

    with config.following():
        return tuple(
            _rebuilt(penalties, config, config.penalties, table) for table in cell.penalties
        )


def _rebuilt(
    registry: Any, config: Config, asked: Sequence[str], described: Mapping[str, Any]
) -> Any:
    """What a cell describes under its name, which for a class by import path is no way to it."""
    params = dict(described)
    name = params.pop("name")
    if ":" in name:
        raise InvalidValue("name of a method", name, "a name, which has no colon")
    bare = (entry.partition("(")[0].strip() for entry in asked)
    paths = (path for path in bare if ":" in path and config.follows(path))
    path = next((path for path in paths if registry.find(path).name == name), name)
    kind = registry.find(path)
    if "version" not in (one.name for one in parameters(kind)):
        decoded, here = params.pop("version", 1), version_of(kind)
        if decoded != here:
            allowed = f"{here}: another version of {name} decoded these runs"
            raise InvalidValue("version", decoded, allowed)
    return registry.get(path, **params)
