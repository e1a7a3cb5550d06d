"""Tables for the terminal: the main one by data set, and the paper's Tables 1, 2 and 3."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from experiments.report.row import ReportRow, by_penalty, dataset_order, pairs, series

MISSING = "—"

_CAPTION = (
    "accuracy: % solved; change: points against full attention, * exact McNemar p < 0.05; length: "
    "times full attention's; brackets: 95% intervals, bold where they leave out 1; keys: read per "
    "solved problem, times full attention's; a detector saves tokens and changes accuracy (points)"
)


def main_tables(rows: Sequence[ReportRow]) -> list[Table]:
    """One table per model, penalty and data set: every backend and budget beside full attention.

    Full attention is the one without penalty, also beside rows with one.

    Fits 80 columns with one detector. A detector's row becomes two columns of the row it belongs
    to; length and accuracy are those without it.
    """
    parts = _parts(rows)
    return [
        _main_table(part, caption=_CAPTION if at == len(parts) - 1 else None)
        for at, part in enumerate(parts)
    ]


def _main_table(part: list[ReportRow], caption: str | None) -> Table:
    by_detector = pairs(part)
    detectors = list(by_detector)
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
            for of_detector in by_detector.values():
                with_it = of_detector.get(row.key)
                cells += _detector_cells(with_it) if with_it else [MISSING, MISSING]
            table.add_row(*cells, end_section=at == len(line) - 1)
    return table


def _main_cells(row: ReportRow) -> list[str]:
    accuracy = MISSING
    if row.accuracy is not None and row.accuracy_low is not None and row.accuracy_high is not None:
        accuracy = f"{_percent(row.accuracy)} \\[{_percent(row.accuracy_low)}, "
        accuracy += f"{_percent(row.accuracy_high)}]"
    if row.is_baseline:
        return [accuracy, MISSING, MISSING, MISSING]
    keys = MISSING
    if row.keys_read_per_solved_ratio is not None:
        keys = f"{row.keys_read_per_solved_ratio:.2f}"
    elif row.accuracy == 0:
        keys = "none"  # solved, so that no cost can be said
    change = _tested(row.accuracy_change, row.accuracy_change_p)
    length = _ratio(row.length_ratio, row.length_ratio_low, row.length_ratio_high)
    return [accuracy, change, length, keys]


def _ratio(ratio: float | None, low: float | None, high: float | None) -> str:
    if ratio is None:
        return MISSING
    if low is None or high is None:
        return f"{ratio:.2f}"
    text = f"{ratio:.2f} \\[{low:.2f}, {high:.2f}]"
    return f"[bold]{text}[/]" if low > 1 or high < 1 else text


def _tested(change: float | None, p: float | None) -> str:
    if change is None or p is None:
        return MISSING
    return _points(change) + ("*" if p < 0.05 else "\u00a0")


def _detector_cells(row: ReportRow) -> list[str]:
    return [
        MISSING if row.token_savings is None else f"{100 * row.token_savings:.1f}%",
        _change(row.detector_accuracy_change),
    ]


def table1(rows: Sequence[ReportRow]) -> list[Table]:
    """Token savings and accuracy change of a detector, per cent and points: the paper's Table 1.

    Full attention, the paper's Table 2, is the first line of each data set. One table per model and
    detector; unlike the paper's, budgets and data sets go down, so that it fits a terminal.
    """
    return _paper_tables(
        rows,
        "Table 1: tokens saved by {}, % / change of accuracy, points",
        lambda row: (_saved(row.token_savings), _change(row.detector_accuracy_change)),
    )


def table3(rows: Sequence[ReportRow]) -> list[Table]:
    """Token savings over samples correct / incorrect without the detector: the paper's Table 3.

    Of the detectors that change some length alone.
    """
    changing = {row.watched for row in rows if row.token_savings}
    return _paper_tables(
        [row for row in rows if row.watched in changing],
        "Table 3: tokens saved by {}, %, where correct / incorrect without it",
        lambda row: (_saved(row.token_savings_correct), _saved(row.token_savings_incorrect)),
    )


def penalty_tables(rows: Sequence[ReportRow]) -> list[Table]:
    """What each penalty changes against the same backend and budget without it, no detector."""
    tables = []
    for model, of_model in _by_model(rows):
        for penalty, of_penalty in by_penalty(of_model).items():
            if penalty != "none":
                chosen = [row for row in of_penalty if row.detector == "none"]
                tables.append(_penalty_table(chosen, f"What {penalty} changes ({model})"))
    return tables


def _penalty_table(rows: list[ReportRow], title: str) -> Table:
    table = Table(
        title=escape(title),
        caption="times the length without it, in brackets 95% intervals; changes in points",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        padding=0,
    )
    for name in ("data set", "backend"):
        table.add_column(name)
    for name in ("budget", "length", "accuracy\u00a0", "lost", "gained", "repetition"):
        table.add_column(name, justify="right")
    for dataset in sorted({row.dataset for row in rows}, key=dataset_order):
        lines = series([row for row in rows if row.dataset == dataset])
        first = True
        for label, line in lines.items():
            for at, row in enumerate(line):
                start = [dataset if first else "", escape(label) if at == 0 else "", _budget(row)]
                table.add_row(*start, *_penalty_cells(row), end_section=at == len(line) - 1)
                first = False
    return table


def _penalty_cells(row: ReportRow) -> list[str]:
    return [
        _ratio(
            row.penalty_length_ratio, row.penalty_length_ratio_low, row.penalty_length_ratio_high
        ),
        _tested(row.penalty_accuracy_change, row.penalty_accuracy_change_p),
        MISSING if row.penalty_solved_lost is None else str(row.penalty_solved_lost),
        MISSING if row.penalty_solved_gained is None else str(row.penalty_solved_gained),
        _change(row.penalty_repetition_change),
    ]


def _by_model(rows: Sequence[ReportRow]) -> list[tuple[str, list[ReportRow]]]:
    names = sorted({row.model for row in rows})
    return [(name, [row for row in rows if row.model == name]) for name in names]


def _paper_tables(
    rows: Sequence[ReportRow], title: str, cell: Callable[[ReportRow], tuple[str, str]]
) -> list[Table]:
    tables = []
    for model, of_model in _by_model(rows):
        detectors = list(pairs(of_model))
        for penalty, of_penalty in by_penalty(of_model).items():
            for name, action in detectors:
                chosen = [row for row in of_penalty if row.watched == (name, action)]
                heading = title.format(_detector_name(name, action, detectors).capitalize())
                tables.append(_paper_table(chosen, f"{heading} ({model}{_under(penalty)})", cell))
    return tables


def _under(penalty: str) -> str:
    return "" if penalty == "none" else f", penalty {penalty}"


def _paper_table(
    rows: list[ReportRow], title: str, cell: Callable[[ReportRow], tuple[str, str]]
) -> Table:
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


def _parts(rows: Sequence[ReportRow]) -> list[list[ReportRow]]:
    """Rows of one model, penalty and data set together, in reading order."""
    return [
        [row for row in of_penalty if row.dataset == dataset]
        for _, of_model in _by_model(rows)
        for of_penalty in by_penalty(of_model).values()
        for dataset in sorted({row.dataset for row in of_penalty}, key=dataset_order)
    ]


def _title(part: list[ReportRow]) -> str:
    first = part[0]
    title = f"{first.dataset}: {max(row.problems for row in part)} problems ({first.model}"
    title += f"{_under(first.penalty)})"
    failed = sum(row.errors for row in part if row.detector == "none")
    return title + (f"; {failed} samples failed and are left out" if failed else "")


def _detector_name(name: str, action: str, among: list[tuple[str, str]]) -> str:
    """The action only where the detector comes with several."""
    return name if [other for other, _ in among].count(name) == 1 else f"{name} ({action})"


def _budget(row: ReportRow) -> str:
    return MISSING if row.budget is None else str(row.budget)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def _points(change: float) -> str:
    return f"{100 * change:+.1f}" if change else "0.0"


def _change(change: float | None) -> str:
    return MISSING if change is None else _points(change)


def _saved(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:.1f}"
