"""Tables of penalties on real models: degenerate texts against answers, by temperature."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pages import table
from wording import LEVEL, MODELS, Row, conditions

from experiments.report.statistics import LEAST, holm, mcnemar


def by_model(found: dict[str, Row]) -> dict[str, list[Row]]:
    """Parts that hold penalties, of each model by temperature."""
    models: dict[str, list[Row]] = {}
    for name, part in found.items():
        if name.startswith("penalties-"):
            models.setdefault(part["penalties"][0]["model"], []).append(part)
    return {
        model: sorted(parts, key=lambda part: part["temperature"])
        for model, parts in models.items()
    }


def moved(cells: Sequence[tuple[float, Row]], less: str, more: str) -> list[str]:
    """Penalties with more problems of one kind than of the other, beyond chance.

    Args:
        cells: temperatures and rows; their tests are corrected for all of them together.
        less, more: counts of problems that only one side has.
    """
    test = holm([mcnemar(row[less], row[more]) for _, row in cells])
    return [
        f"`{row['penalty']}` at {temperature}"
        for (temperature, row), p in zip(cells, test, strict=True)
        if p <= LEVEL and row[less] > row[more]
    ]


def in_short(found: dict[str, Row]) -> Iterator[str]:
    """What penalties change against none, each with its count."""
    for model, parts in by_model(found).items():
        rows = [(part["temperature"], row) for part in parts for row in part["penalties"]]
        cells = [(at, row) for at, row in rows if row["penalty"] != "none"]
        without = [(at, row) for at, row in rows if row["penalty"] == "none"]
        plain = ", ".join(f"{row['degenerate']} at temperature {at}" for at, row in without)
        solved = max(row["solved"] for _, row in without)
        told = [
            f"{len(names)} {what}" + (f" ({', '.join(names)})" if names else "")
            for what, names in (
                ("leave fewer", moved(cells, "degenerate_gone", "degenerate_new")),
                ("more", moved(cells, "degenerate_new", "degenerate_gone")),
                ("lose answers", moved(cells, "lost", "gained")),
                ("gain some", moved(cells, "gained", "lost")),
            )[: 4 if solved >= LEAST else 2]
        ]
        few = (
            "" if solved >= LEAST else f" Of {solved} solved problems none can be seen to be lost."
        )
        yield (
            f"{MODELS.get(model, model)} without a penalty: of {rows[0][1]['n']} texts {plain} "
            f"hold a block twenty times in a row. Of {len(cells)} penalties, strengths and "
            f"temperatures {', '.join(told)} (exact McNemar, Holm).{few}"
        )


def penalties(found: dict[str, Row]) -> Iterator[str]:
    """Degenerate texts against accuracy, by temperature."""
    models = by_model(found)
    if not models:
        return
    yield "## Penalties\n"
    for model, parts in models.items():
        rows: dict[str, dict[float, Row]] = {}
        for part in parts:
            for row in part["penalties"]:
                rows.setdefault(row["penalty"], {})[part["temperature"]] = row
        n = max(row["n"] for of in rows.values() for row in of.values())
        yield f"### {MODELS.get(model, model)}: of {n} texts, degenerate / cut / solved\n"
        yield table(
            ("penalty", *(f"T {part['temperature']}" for part in parts)),
            [
                (
                    f"`{penalty}`",
                    *(
                        f"{row['degenerate']} / {row['cut']} / {row['solved']}"
                        if (row := of.get(part["temperature"])) is not None
                        else ""
                        for part in parts
                    ),
                )
                for penalty, of in rows.items()
            ],
        )
        yield (
            "Degenerate: a block of tokens stands twenty times in a row, the papers' rule. "
            f"{conditions(parts[0], at=False)}\n"
        )
