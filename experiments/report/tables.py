"""Tables for the terminal: the main one by data set, and the paper's Tables 1, 2 and 3."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from experiments.report.row import Cheaper, ReportRow, by_penalty, dataset_order, pairs, series

MISSING = "—"

_CAPTION = (
    "solved: %; change: points against full attention; length: times full attention's, a ratio of "
    "outputs cut at the cap is a lower bound; cut: % of outputs cut at the cap; brackets: 95% "
    "intervals, bold where they leave out no change; *: exact McNemar p < 0.05"
)
_COST_CAPTION = (
    "both: length over the problems that it and full attention solve, and how many those are; "
    "keys: read per solved problem; both times full attention's, bold where the 95% interval "
    "leaves out 1; compressed: bytes over original bytes; loops: % of outputs with a block "
    "repeated 20 times"
)

Cells = Callable[[ReportRow], list[str]]


def main_tables(rows: Sequence[ReportRow]) -> list[Table]:
    """One table per model, penalty and data set: every backend and budget beside full attention.

    Full attention is the one without penalty, also beside rows with one. Fits 80 columns.
    """
    names = ("solved", "change", "length", "cut")
    return _by_backend(rows, names, _main_cells, _title, _CAPTION)


def cost_tables(rows: Sequence[ReportRow]) -> list[Table]:
    """One table per model, penalty and data set: what a solved problem costs, and how texts end."""
    names = ("both solve", "keys / solved", "compressed", "loops")
    return _by_backend(rows, names, _cost_cells, _cost_title, _COST_CAPTION)


def _by_backend(
    rows: Sequence[ReportRow],
    names: Sequence[str],
    cells: Cells,
    title: Callable[[list[ReportRow]], str],
    caption: str,
) -> list[Table]:
    parts = _parts([row for row in rows if row.detector == "none"])
    tables = []
    for part in parts:
        table = Table(
            title=escape(title(part)),
            caption=caption if part is parts[-1] else None,
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            title_justify="left",
            caption_justify="left",
        )
        table.add_column("backend")
        for name in ("budget", *names):
            table.add_column(name, justify="right")
        for label, line in series(part).items():
            for at, row in enumerate(line):
                start = [escape(label) if at == 0 else "", _budget(row)]
                shown = cells(row) if row.is_complete else _incomplete(row, len(names))
                table.add_row(*start, *shown, end_section=at == len(line) - 1)
        tables.append(table)
    return tables


def _incomplete(row: ReportRow, columns: int) -> list[str]:
    """A configuration whose missing outputs are its longest has no numbers to compare."""
    there = row.samples - row.missing - row.errors
    return [f"{there} of {row.samples}, not comparable", *[MISSING] * (columns - 1)]


def _main_cells(row: ReportRow) -> list[str]:
    accuracy = MISSING
    if row.accuracy is not None and row.accuracy_low is not None and row.accuracy_high is not None:
        accuracy = f"{_percent(row.accuracy)} \\[{_percent(row.accuracy_low)}, "
        accuracy += f"{_percent(row.accuracy_high)}]"
    cut = f"{_percent(row.capped / row.samples)}%" if row.samples else MISSING
    if row.is_baseline:
        return [accuracy, MISSING, MISSING, cut]
    length = _ratio(row.length_ratio, row.length_ratio_low, row.length_ratio_high)
    return [accuracy, _moved(row), length, cut]


def _moved(row: ReportRow) -> str:
    change, low, high = row.accuracy_change, row.accuracy_change_low, row.accuracy_change_high
    if change is None or low is None or high is None:
        return MISSING
    text = f"{_points(change)} \\[{_bound(low)}, {_bound(high)}]"
    return _starred(f"[bold]{text}[/]" if low > 0 or high < 0 else text, row.accuracy_change_p)


def _bound(change: float) -> str:
    """Whole points, but never a 0 where the bound is not."""
    text = f"{100 * change:.0f}"
    return text if int(text) or not change else f"{100 * change:.1g}"


def _cost_cells(row: ReportRow) -> list[str]:
    both, keys = MISSING, MISSING
    if not row.is_baseline and row.length_ratio_solved is not None:
        low, high = row.length_ratio_solved_low, row.length_ratio_solved_high
        both = f"{_ratio(row.length_ratio_solved, low, high)} {row.solved_by_both:3d}"
    if not row.is_baseline and row.keys_read_per_solved_ratio is not None:
        keys = _ratio(
            row.keys_read_per_solved_ratio,
            row.keys_read_per_solved_ratio_low,
            row.keys_read_per_solved_ratio_high,
        )
    elif row.accuracy == 0:
        keys = "none solved"  # so that no cost can be said
    ratio, loops = row.compression_ratio, row.repetition_rate
    return [
        both,
        keys,
        MISSING if ratio is None else f"{ratio:.2f}",
        MISSING if loops is None else f"{_percent(loops)}%",
    ]


def _ratio(ratio: float | None, low: float | None, high: float | None) -> str:
    if ratio is None:
        return MISSING
    if low is None and high is None:
        return f"{ratio:.2f}"
    least = "0" if low is None else f"{low:.2f}"
    most = "∞" if high is None else f"{high:.2f}"
    text = f"{ratio:.2f} \\[{least}, {most}]"
    return f"[bold]{text}[/]" if (low or 0) > 1 or (high or 2) < 1 else text


def _tested(change: float | None, p: float | None) -> str:
    return MISSING if change is None else _starred(_points(change), p)


def _starred(text: str, p: float | None) -> str:
    return text + ("*" if p is not None and p < 0.05 else "\u00a0")


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
    failed = sum(row.errors for row in part)
    censored = max(row.pairs_censored for row in part)
    if censored:
        title += f"; {censored} of full attention's cut at its cap: in no ratio"
    return title + (f"; {failed} samples failed (lil sweep --retry-failed)" if failed else "")


def _cost_title(part: list[ReportRow]) -> str:
    first = part[0]
    title = f"{first.dataset}: cost ({first.model}{_under(first.penalty)})"
    told = [
        f"{label}: {_cheaper(line[0].cheaper)}"
        for label, line in series(part).items()
        if line[0].cheaper is not None
    ]
    return title + (
        f"; fewer keys per solved problem at budgets: {', '.join(told)}" if told else ""
    )


def _cheaper(at: Cheaper) -> str:
    if at.first is None or at.last is None:
        return f"none of {at.of}"
    first = ("≤" if at.first_kind == "at most" else "") + f"{at.first:.0f}"
    last = ("≥" if at.last_kind == "at least" else "") + f"{at.last:.0f}"
    return f"{first} to {last} ({at.budgets} of {at.of})"


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
