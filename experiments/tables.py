"""Tables for the terminal: the main one by data set, and the paper's Tables 1, 2 and 3."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from experiments.row import Row, dataset_order, series

MISSING = "—"

_CAPTION = (
    "accuracy: % solved; change: points against full attention, * exact McNemar p < 0.05; length: "
    "times full attention's; brackets: 95% intervals, bold where they leave out 1; keys: read per "
    "solved problem, times full attention's; a detector saves tokens and changes accuracy (points)"
)


def main_tables(rows: Sequence[Row]) -> list[Table]:
    """One table per model and data set: every backend and budget beside full attention.

    Fits 80 columns with one detector. A detector's row becomes two columns of the row it belongs
    to; length and accuracy are those without it.
    """
    parts = _parts(rows)
    return [
        _main_table(part, caption=_CAPTION if at == len(parts) - 1 else None)
        for at, part in enumerate(parts)
    ]


def _main_table(part: list[Row], caption: str | None) -> Table:
    detectors = _detectors(part)
    table = Table(
        title=escape(_title(part)),
        caption=caption,
        box=box.SIMPLE_HEAD,
        padding=0,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("backend")
    for name in ("budget", "accuracy", "change\u00a0", "length", "keys/\nsolved"):
        table.add_column(name, justify="right")
    for name, action in detectors:
        table.add_column(f"{_detector_name(name, action, detectors)}\nsaves", justify="right")
        table.add_column("\nacc.", justify="right")
    plain = series([row for row in part if row.detector == "none"])
    for label, line in plain.items():
        for at, row in enumerate(line):
            cells = [escape(label) if at == 0 else "", _budget(row), *_main_cells(row)]
            for name, action in detectors:
                with_it = _with_detector(part, row, name, action)
                cells += _detector_cells(with_it) if with_it else [MISSING, MISSING]
            table.add_row(*cells, end_section=at == len(line) - 1)
    return table


def _main_cells(row: Row) -> list[str]:
    is_baseline = row.backend == "full" and row.penalty == "none"
    accuracy = MISSING
    if row.accuracy is not None and row.accuracy_low is not None and row.accuracy_high is not None:
        accuracy = f"{_percent(row.accuracy)} \\[{_percent(row.accuracy_low)}, "
        accuracy += f"{_percent(row.accuracy_high)}]"
    if is_baseline:
        return [accuracy, MISSING, MISSING, MISSING]
    change = MISSING
    if row.accuracy_change is not None and row.accuracy_change_p is not None:
        change = _points(row.accuracy_change) + ("*" if row.accuracy_change_p < 0.05 else "\u00a0")
    keys = MISSING
    if row.keys_read_per_solved_ratio is not None:
        keys = f"{row.keys_read_per_solved_ratio:.2f}"
    elif row.accuracy == 0:
        keys = "none"  # solved, so that no cost can be said
    return [accuracy, change, _length(row), keys]


def _length(row: Row) -> str:
    if row.length_ratio is None:
        return MISSING
    if row.length_ratio_low is None or row.length_ratio_high is None:
        return f"{row.length_ratio:.2f}"
    text = f"{row.length_ratio:.2f} \\[{row.length_ratio_low:.2f}, {row.length_ratio_high:.2f}]"
    return f"[bold]{text}[/]" if row.length_ratio_low > 1 or row.length_ratio_high < 1 else text


def _detector_cells(row: Row) -> list[str]:
    return [
        MISSING if row.token_savings is None else f"{100 * row.token_savings:.1f}%",
        _change(row.detector_accuracy_change),
    ]


def table1(rows: Sequence[Row]) -> list[Table]:
    """Token savings and accuracy change of a detector, per cent and points: the paper's Table 1.

    Full attention, the paper's Table 2, is the first line of each data set. One table per model and
    detector; unlike the paper's, budgets and data sets go down, so that it fits a terminal.
    """
    return _paper_tables(
        rows,
        "Table 1: tokens saved by {}, % / change of accuracy, points",
        lambda row: (_saved(row.token_savings), _change(row.detector_accuracy_change)),
    )


def table3(rows: Sequence[Row]) -> list[Table]:
    """Token savings over samples correct / incorrect without the detector: the paper's Table 3."""
    return _paper_tables(
        rows,
        "Table 3: tokens saved by {}, %, where correct / incorrect without it",
        lambda row: (_saved(row.token_savings_correct), _saved(row.token_savings_incorrect)),
    )


def _paper_tables(
    rows: Sequence[Row], title: str, cell: Callable[[Row], tuple[str, str]]
) -> list[Table]:
    tables = []
    for model in sorted({row.model for row in rows}):
        of_model = [row for row in rows if row.model == model]
        detectors = _detectors(of_model)
        for name, action in detectors:
            chosen = [row for row in of_model if (row.detector, row.action) == (name, action)]
            heading = title.format(_detector_name(name, action, detectors).capitalize())
            tables.append(_paper_table(chosen, f"{heading} ({model})", cell))
    return tables


def _paper_table(rows: list[Row], title: str, cell: Callable[[Row], tuple[str, str]]) -> Table:
    by_dataset = {
        dataset: series([row for row in rows if row.dataset == dataset])
        for dataset in sorted({row.dataset for row in rows}, key=dataset_order)
    }
    labels = list(dict.fromkeys(label for lines in by_dataset.values() for label in lines))
    table = Table(title=escape(title), box=box.SIMPLE_HEAD, title_justify="left", padding=0)
    table.add_column("data set")
    table.add_column("budget", justify="right")
    for label in labels:
        table.add_column(escape(label), justify="right")
    for dataset, lines in by_dataset.items():
        cells = {(label, row.budget): cell(row) for label, line in lines.items() for row in line}
        budgets = sorted({budget for _, budget in cells}, key=lambda budget: budget or 0)
        for at, budget in enumerate(budgets):
            shown = (cells.get((label, budget)) for label in labels)
            table.add_row(
                dataset if at == 0 else "",
                MISSING if budget is None else str(budget),
                *(" / ".join(pair) if pair else "" for pair in shown),
                end_section=at == len(budgets) - 1,
            )
    return table


def _parts(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of one model and data set together, in reading order."""
    keys = sorted(
        {(row.model, row.dataset) for row in rows}, key=lambda k: (k[0], dataset_order(k[1]))
    )
    return [[row for row in rows if (row.model, row.dataset) == key] for key in keys]


def _title(part: list[Row]) -> str:
    first = part[0]
    title = f"{first.dataset}: {max(row.problems for row in part)} problems ({first.model})"
    failed = sum(row.errors for row in part if row.detector == "none")
    return title + (f"; {failed} samples failed and are left out" if failed else "")


def _detectors(rows: Sequence[Row]) -> list[tuple[str, str]]:
    return sorted({(row.detector, row.action) for row in rows if row.detector != "none"})


def _detector_name(name: str, action: str, among: list[tuple[str, str]]) -> str:
    """The action only where the detector comes with several."""
    return name if [other for other, _ in among].count(name) == 1 else f"{name} ({action})"


def _with_detector(part: list[Row], row: Row, name: str, action: str) -> Row | None:
    for other in part:
        if (other.detector, other.action) == (name, action) and (
            (other.backend, other.budget, other.penalty, other.backend_params)
            == (row.backend, row.budget, row.penalty, row.backend_params)
        ):
            return other
    return None


def _budget(row: Row) -> str:
    return MISSING if row.budget is None else str(row.budget)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def _points(change: float) -> str:
    return f"{100 * change:+.1f}" if change else "0.0"


def _change(change: float | None) -> str:
    return MISSING if change is None else _points(change)


def _saved(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:.1f}"
