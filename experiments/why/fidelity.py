"""How many of full attention's tokens each method would have chosen, over the texts of a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from attention.contract import Backend
from experiments.store.study import Study
from lil import Acceptance, Trace, acceptance

#: Texts that are read together.
BATCH = 32


def texts(study: Study, limit: int | None = None) -> dict[str, dict[str, Trace]]:
    """Full attention's greedy text of each problem that the store has, by data set.

    Args:
        study: the store.
        limit: problems of each data set, the first ones.
    """
    found: dict[str, dict[str, Trace]] = {}
    for cell in study.plan.cells:
        if not cell.is_full or cell.sampling["temperature"]:
            continue
        mine = found.setdefault(cell.dataset, {})
        for run in study.plan.runs(cell):
            if limit is not None and len(mine) >= limit:
                break
            record = study.served(run)
            if record is not None and run.item_id not in mine:
                mine[run.item_id] = record.trace()
    return {dataset: mine for dataset, mine in found.items() if mine}


def measured(
    model: Any,
    traces: Sequence[Trace],
    backend: Backend,
    engine: str = "auto",
    on_texts: Callable[[int], None] = lambda _: None,
) -> list[Acceptance]:
    """Of each text; `on_texts` is told after each batch how many it had.

    Raises:
        InvalidValue: the backend does not fit the model.
    """
    found: list[Acceptance | None] = [None] * len(traces)
    order = sorted(range(len(traces)), key=lambda at: -traces[at].tokens)
    for begin in range(0, len(order), BATCH):
        those = order[begin : begin + BATCH]
        read = acceptance(
            model, [traces[at] for at in those], backend, batch_size=BATCH, engine=engine
        )
        for at, one in zip(those, read, strict=True):
            found[at] = one
        on_texts(len(those))
    return [one for one in found if one is not None]


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
