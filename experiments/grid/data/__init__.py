"""Data sets: which there are, their lines, the prompts made of them."""

from experiments.grid.data.loading import (
    MOST_MADE,
    DataSet,
    Item,
    Wanted,
    load,
    load_all,
    load_set,
    typed,
)

__all__ = ["MOST_MADE", "DataSet", "Item", "Wanted", "load", "load_all", "load_set", "typed"]
