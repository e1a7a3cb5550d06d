"""Tables as Markdown and as LaTeX with booktabs, whatever characters their names have."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from experiments.report.tables.cells import TableCell
from experiments.report.tables.grid import Grid

_MARKDOWN = re.compile(r"([\\`*_|<>\[\]#~$])")
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": "{[}",  # after the end of a line it would be its argument
    "]": "{]}",
    "\u00a0": "~",
    "—": "---",
    "…": r"\ldots{}",
    "∞": r"$\infty$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
}


def markdown(grids: Sequence[Grid]) -> str:
    """Every table under its title, labels in every line."""
    return "\n".join(_markdown(grid) for grid in grids)


def latex(grids: Sequence[Grid]) -> str:
    """Every table a `table` with its title as caption; needs the package booktabs."""
    head = "% Needs \\usepackage{booktabs} and, for quotation marks, \\usepackage[T1]{fontenc}.\n"
    return head + "\n".join(_latex(grid) for grid in grids)


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is, in a table's cell too."""
    return _MARKDOWN.sub(r"\\\1", _one_line(text))


def latex_text(text: str) -> str:
    """Text that LaTeX sets as it is; a minus before a number is one."""
    escaped = "".join(_LATEX.get(character, character) for character in _one_line(text))
    return re.sub(r"(?<![\w.-])-(?=\d)", r"$-$", escaped)


def _one_line(text: str) -> str:
    return "".join(one if one.isprintable() or one == "\u00a0" else " " for one in text)


def _marked(cell: TableCell, escape: Callable[[str], str], bold: str) -> str:
    inside = escape(f"{cell.value} {cell.interval}" if cell.interval else cell.value)
    inside = bold.format(inside) if cell.bold else inside
    return inside + (escape("*") if cell.star else "")


def _markdown(grid: Grid) -> str:
    names = [markdown_text(name.strip()) for name in grid.columns]
    lines = [f"### {markdown_text(grid.title)}", "", _piped(names)]
    lines.append(_piped(["---" if at < grid.labels else "---:" for at in range(len(names))]))
    for line in grid.lines:
        cells = [_marked(cell, markdown_text, "**{}**") for cell in line.cells]
        lines.append(_piped([*map(markdown_text, line.labels), *cells]))
    if grid.caption:
        lines += ["", markdown_text(grid.caption)]
    return "\n".join([*lines, ""])


def _piped(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _latex(grid: Grid) -> str:
    caption = f"{grid.title}. {grid.caption}." if grid.caption else f"{grid.title}."
    columns = "l" * grid.labels + "r" * (len(grid.columns) - grid.labels)
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{latex_text(caption)}}}",
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        _row([latex_text(name.strip()) for name in grid.columns]),
        r"    \midrule",
    ]
    for at, line in enumerate(grid.lines):
        cells = [_marked(cell, latex_text, r"\textbf{{{}}}") for cell in line.cells]
        lines.append(_row([*map(latex_text, grid.shown_labels(at)), *cells]))
        if grid.is_last(at) and at + 1 < len(grid.lines):
            lines.append(r"    \addlinespace")
    lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}", ""]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"
