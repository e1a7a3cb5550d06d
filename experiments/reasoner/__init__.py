"""The small reasoning model that ships with the project: its problems, language and checkpoint."""

from pathlib import Path

from .problems import LEVELS, RECIPES, SPLITS, Problem, problem

__all__ = ["LEVELS", "RECIPES", "SPLITS", "Problem", "checkpoint_path", "problem"]


def checkpoint_path() -> Path:
    """Folder with the trained weights, config and tokenizer, for `from_pretrained`."""
    return Path(__file__).parent / "checkpoint"
