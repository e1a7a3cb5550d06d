"""Made-up texts of the study: a level whose null scatters and one method that may be longer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import study_readings
import study_texts
from study_texts import Text
from text_readings import CLASSES, TextReading

from experiments.report.bootstrap import Bootstrap
from experiments.store.samples.sample import Sample

FULL = ("full", None, False)


def text(
    item: int,
    tokens: int,
    cell: tuple[str, int | None],
    role: str = "method",
    first_right: int | None = 5,
    first_stated: int | None = None,
    first_is_right: bool = True,
) -> Text:
    """A solved text of so many tokens."""
    reading = TextReading(
        tokens, "solved", dict.fromkeys(CLASSES, 0) | {"derived": tokens}, first_right, 1, 1,
        first_is_right, True, 0, 0, 0, first_stated,
    )  # fmt: skip
    sample = Sample(
        model="m", dataset="hard", item_id=f"{item:04}", sample_index=0, backend=cell[0],
        backend_params=(), budget=cell[1], penalty="none", status="ok", tokens=tokens,
        role=role,  # type: ignore[arg-type]
    )  # fmt: skip
    costs = dict.fromkeys(study_texts.COSTS, float(tokens))
    return Text(sample, {8: reading}, {8: costs})


def world(
    effect: float, kept: float | None = None, cut: int = 0, controls: bool = False
) -> dict[str, Any]:
    """A level whose null scatters and whose h2o is longer by an effect.

    Args:
        effect: of the logarithm of its lengths.
        kept: the same of h2o with the prompt kept; None for none.
        cut: of full attention's texts that do not end.
        controls: texts of a random sample of keys and of uniform weights, which do not differ.
    """
    draw = np.random.default_rng(0)
    n, cells = 60, {}
    lengths = draw.integers(400, 600, n)
    cells[FULL] = {f"{at:04}": text(at, int(lengths[at]), FULL[:2]) for at in range(n)}
    for at in range(cut):
        one = cells[FULL][f"{at:04}"]
        cells[FULL][f"{at:04}"] = replace(one, sample=replace(one.sample, status="capped"))
    for name, budget, role, more in (
        ("dither", None, "null", 0.0), ("h2o", 64, "method", effect), ("quest", 64, "method", 0.0),
        ("oracle", 64, "control", 0.0),
    ):  # fmt: skip
        noise = draw.normal(more, 0.3 if name != "oracle" else 0.0, n)
        cells[name, budget, False] = {
            f"{at:04}": text(at, round(lengths[at] * math.exp(noise[at])), (name, budget), role)
            for at in range(n)
        }
    if kept is not None:
        noise = draw.normal(kept, 0.3, n)
        cells["h2o", 64, True] = {
            f"{at:04}": text(at, round(lengths[at] * math.exp(noise[at])), ("h2o", 64), "method")
            for at in range(n)
        }
    for name in ("random", "h2o_uniform") if controls else ():
        noise = draw.normal(0.0, 0.3, n)
        cells[name, 64, False] = {
            f"{at:04}": text(at, round(lengths[at] * math.exp(noise[at])), (name, 64), "control")
            for at in range(n)
        }
    return study_readings.at_cap(cells, 8, 1, Bootstrap(0, 2000))
