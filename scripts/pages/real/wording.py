"""How what was measured of real models is named in tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
MODELS = {"smollm2": "SmolLM2-135M", "qwen-coder-0.5b": "Qwen2.5-Coder-0.5B",
          "qwen-coder-1.5b": "Qwen2.5-Coder-1.5B"}  # fmt: skip
#: A p of no more lets something be said.
LEVEL = 0.05


def number(row: Row, name: str, form: str = ".2f", times: float = 1) -> str:
    """A value with its interval, where it has any."""
    if row[name] is None:
        return ""
    told = format(row[name] * times, form)
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    if low is None or high is None:
        return told
    return f"{told} [{format(low * times, form)}, {format(high * times, form)}]"


def name_of(row: Row) -> str:
    """A method, its budget, and what is not its default."""
    if row["role"] == "null":
        return "full attention again, with noise" if row["backend"] == "dither" else "full again"
    kept = " with the prompt" if dict(row["backend_params"]).get("keep_prompt") else ""
    budget = "" if row["budget"] is None else f" {row['budget']}"
    return f"{row['backend']}{budget}{kept}"


def conditions(part: Row, at: bool = True) -> str:
    """What its numbers depend on; without its temperature where `at` is False."""
    weights = "" if part["weights"] == "stored" else f", linear layers in {part['weights']}"
    how = "greedy" if not part["temperature"] else f"temperature {part['temperature']}"
    told = f", {how}" if at else ""
    return f"{part['dtype']}{weights}{told}, at most {part['cap']} tokens."


def keeps_prompt(row: Row) -> bool:
    """Whether a method was told to keep the prompt."""
    return bool(dict(row["backend_params"]).get("keep_prompt"))


def listed(names: Sequence[str]) -> str:
    """Names after a colon, or nothing."""
    return f": {', '.join(names)}," if names else ""
