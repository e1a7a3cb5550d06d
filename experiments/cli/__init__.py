"""The command `lil`: one file a noun, imported only when it is used."""

# Nothing else may stand here: `lil list` makes `list` a name of this package.
from experiments.cli.entry import main

__all__ = ["main"]
