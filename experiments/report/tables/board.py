"""The board of every way of stopping, a table for each model, temperature and attention."""

from __future__ import annotations

from experiments.report.board import Board, BoardRow, subject
from experiments.report.tables.grid import (
    Grid,
    Line,
    TableCell,
    net,
    share,
    whole_percent,
)

#: What the columns mean.
BOARD_NOTE = (
    "at most: share of right answers lost, bounded with 95% confidence on so many problems of the "
    "half that chose the setting; then the other half: tokens, keys, loops and tails spared, in %; "
    "answers lost of so many right and gained of so many wrong; net: in points of all; brackets: "
    "95% intervals, problems resampled; asked: tokens and keys that asking the model took, in % of "
    "all, taken off what is spared"
)


def board_grids(board: Board) -> list[Grid]:
    """A table for each group."""
    columns = ("detector", "at most", "tokens", "keys", "lost", "gained", "net", "loops", "tails")
    grids = []
    for group, rows in board.items():
        effects = [row.effect for row in rows if row.effect is not None]
        asks = any(effect.asked_tokens or effect.asked_keys for effect in effects)
        lines = tuple(Line((row.label,), _cells(row, asks)) for row in rows)
        why: dict[str, list[str]] = {}
        for row in rows:
            if row.reason:
                why.setdefault(row.reason, []).append(row.detector)
        caption = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in why.items())
        title = f"Stopping at the same loss ({subject(group, board)})"
        grids.append(Grid(title, (*columns, *(["asked"] if asks else [])), lines, caption))
    return grids


def _cells(row: BoardRow, asks: bool) -> tuple[TableCell, ...]:
    effect = row.effect
    if effect is None:
        return (TableCell("no setting"), *[TableCell()] * (7 + asks))
    bound = TableCell(f"{100 * row.high:.2g}%", f"of {row.problems}")
    change, solved = effect.stopped.change, effect.stopped.solved
    cells = [
        TableCell() if row.problems is None else bound,
        *(share(effect.stopped.tokens), share(effect.keys)),
        TableCell(f"{change.lost}", f"of {solved}"),
        TableCell(f"{change.gained}", f"of {effect.judged - solved}"),
        *(net(change), share(effect.loops), share(effect.tails)),
    ]
    if asks:
        both = (whole_percent(part).value for part in (effect.asked_tokens, effect.asked_keys))
        cells.append(TableCell(", ".join(both)))
    return tuple(cells)
