"""Which rows stand in one table, and what its title says of them."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.report.row import ReportRow, by_penalty, dataset_order


def by_model(rows: Sequence[ReportRow]) -> list[tuple[str, list[ReportRow]]]:
    """Rows of each model, by alphabet."""
    names = sorted({row.model for row in rows})
    return [(name, [row for row in rows if row.model == name]) for name in names]


def by_dataset(rows: Sequence[ReportRow]) -> list[tuple[str, list[ReportRow]]]:
    """Rows of each data set, easy before hard."""
    names = sorted({row.dataset for row in rows}, key=dataset_order)
    return [(name, [row for row in rows if row.dataset == name]) for name in names]


def parts(rows: Sequence[ReportRow]) -> list[list[ReportRow]]:
    """Rows without detector of one model, penalty and data set together, in reading order."""
    plain = [row for row in rows if row.detector == "none"]
    return [
        part
        for _, of_model in by_model(plain)
        for of_penalty in by_penalty(of_model).values()
        for _, part in by_dataset(of_penalty)
    ]


def budget_label(row: ReportRow) -> str:
    """The budget, or a dash for full attention."""
    return "—" if row.budget is None else str(row.budget)


def under(penalty: str) -> str:
    """A title's words on a penalty."""
    return "" if penalty == "none" else f", penalty {penalty}"


def problems(part: Sequence[ReportRow]) -> str:
    """How many problems, and samples of each where they are several."""
    count, each = (
        max(getattr(row, n) for row in part) for n in ("problems", "samples_per_problem")
    )
    text = f"{count} problem" + ("" if count == 1 else "s")
    return text + (f" x {each} samples" if each > 1 else "")


def censored(part: Sequence[ReportRow]) -> str:
    """How many pairs no ratio has, because full attention was cut; nothing where there are none."""
    numbers = {row.pairs_censored for row in part if row.pairs and not row.is_baseline}
    # Full attention alone tells how many there will be.
    numbers = numbers or {row.pairs_censored for row in part}
    if not any(numbers):
        return ""
    least, most = min(numbers), max(numbers)
    told = f"{most}" if least == most else f"{least} to {most}"
    return f"; {told} of full attention's cut at its cap: in no ratio"


def at_positions(part: Sequence[ReportRow]) -> str:
    """Which rows have outputs at the end of the model's positions; nothing where none has."""
    told = [
        f"{row.backend}{'' if row.budget is None else f' {row.budget}'} {row.at_positions}"
        for row in part
        if row.at_positions
    ]
    if not told:
        return ""
    return f"outputs cut where the model's positions end, or beyond them: {', '.join(told)}"
