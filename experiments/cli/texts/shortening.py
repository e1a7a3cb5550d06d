"""Long texts of models and data on a terminal."""

from __future__ import annotations

from experiments.cli.console import Console

#: Characters of a text that are shown where nobody asked for all.
SHOWN = 2000


def beginning_and_end(text: str, whole: bool, flag: str) -> str:
    """A text, of a long one its two ends and how much is left out; `flag` prints all of it."""
    if whole or len(text) <= SHOWN:
        return text
    half = SHOWN // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters more: {flag}]\n{text[-half:]}"


def ending(text: str, whole: bool, flag: str) -> str:
    """A text, of a long one its end and how much is left out; `flag` prints all of it."""
    if whole or len(text) <= SHOWN:
        return text
    return f"[{len(text) - SHOWN:,} characters before: {flag}]\n{text[-SHOWN:]}"


def dim(text: str, console: Console) -> None:
    """Print a text as it is, behind what is said about it."""
    console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)
