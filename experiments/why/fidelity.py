"""How many of full attention's tokens each method would have chosen, over the texts of a store."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from experiments.grid.identity import Configuration
from experiments.store.study import Study
from lil import Acceptance, Trace


def texts(study: Study, limit: int | None = None) -> list[tuple[Configuration, dict[str, Trace]]]:
    """Full attention's greedy text of each problem that the store has, by model and data set.

    Args:
        study: the store.
        limit: problems of each data set, the first ones.

    Returns:
        The first cell that decoded such texts, which names the model, and the texts.
    """
    configurations: dict[tuple[str, str], Configuration] = {}
    found: dict[tuple[str, str], dict[str, Trace]] = {}
    for configuration in study.plan.configurations:
        if not configuration.is_full or configuration.sampling["temperature"]:
            continue
        key = configuration.model_digest, configuration.dataset
        configurations.setdefault(key, configuration)
        mine = found.setdefault(key, {})
        for run in study.plan.runs(configuration):
            if limit is not None and len(mine) >= limit:
                break
            record = study.usable(run)
            if record is not None and run.item_id not in mine:
                mine[run.item_id] = record.trace()
    return [(configurations[key], mine) for key, mine in found.items() if mine]


def counted(found: Sequence[Acceptance]) -> dict[str, Any]:
    """Steps, those accepted, and how far a text goes before the first that is not."""
    steps = sum(one.steps for one in found)
    return {
        "texts": len(found),
        "steps": steps,
        "accepted": sum(one.accepted for one in found),
        "wholly": sum(one.accepted == one.steps for one in found),
        "agreed_median": median(one.agreed for one in found) if found else None,
        "keys_per_step": sum(one.keys_read for one in found) / steps if steps else None,
    }
