"""Draws the figures of README and docs/STUDY.md from the numbers in docs/results.

python scripts/figures.py            # writes docs/pictures/*.png
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

DOCS = Path(__file__).parent.parent / "docs"
COLOURS = {
    "full": "black",
    "quest": "tab:green",
    "random": "tab:gray",
    "h2o": "tab:red",
    "sink": "tab:orange",
    "infllm": "tab:purple",
    "oracle": "tab:blue",
}
KEEP_ALL = ("quest", "duo", "oracle", "adamas", "lessismore", "kascade", "infllm")
NAMES = {
    "full": "full attention",
    "quest": "Quest",
    "random": "random sample",
    "h2o": "H2O",
    "sink": "sink",
    "infllm": "InfLLM",
    "oracle": "oracle",
}


def numbers(page: str) -> dict[str, Any]:
    """The published numbers of a page."""
    return json.loads((DOCS / "results" / f"{page}.json").read_text(encoding="utf-8"))


def save(name: str) -> None:
    """Write the current figure to docs/pictures."""
    folder = DOCS / "pictures"
    folder.mkdir(exist_ok=True)
    plt.savefig(folder / f"{name}.png", dpi=110, bbox_inches="tight")
    plt.close()


def bare(axes: Axes) -> None:
    """Remove the frame's upper and right line and draw a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def real_model() -> None:
    """Solved problems and keys per solved problem of Qwen2.5-Coder-1.5B, every method."""
    methods = numbers("real_models")["methods"]
    rows = sorted(methods["rows"].items(), key=lambda x: x[1]["solved"])
    quarter = methods["quarter"]["rows"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 5.2), sharey=True)
    for y, (label, row) in enumerate(rows):
        name = label.split()[0]
        kind = "tab:green" if name in KEEP_ALL else "tab:red"
        colour = {"full": "black", "random": "tab:gray"}.get(name, kind)
        left.barh(y, row["solved"], color=colour, height=0.6)
        left.plot([100 * x for x in row["accuracy"][1:]], [y, y], color="black", lw=0.8)
        if label in quarter and label != "full":
            left.plot(quarter[label]["solved"], y, "D", color="black", mfc="white", ms=5)
        ratio, low, high = row["keys_per_solved"]
        if low is not None:
            right.plot([low, high], [y, y], color=colour, lw=2)
        right.plot(ratio, y, "o", color=colour, ms=4)
    left.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=8)
    left.set_xlabel("problems solved, of 100; diamonds: with 112 keys")
    right.axvline(1, color="black", lw=0.8, ls="--")
    right.set_xscale("log")
    right.set_xticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
    right.minorticks_off()
    right.set_xlabel("keys read per solved problem,\ntimes full attention's")
    for axes in (left, right):
        bare(axes)
    title = "Qwen2.5-Coder-1.5B on GSM8K, 192 keys, 95% intervals; red: drop keys in all heads"
    figure.suptitle(title, fontsize=9)
    figure.tight_layout()
    save("real_model")


def reasoner() -> None:
    """Accuracy and length of the shipped reasoner against the budget."""
    levels = numbers("study")["first"]["hard"]
    rows = levels["rows"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.2))
    for name in ("oracle", "quest", "infllm", "h2o", "random", "sink"):
        budgets = sorted(
            int(label.split()[1])
            for label in rows
            if label.split()[0] == name and len(label.split()) == 2
        )
        chosen = [rows[f"{name} {budget}"] for budget in budgets]
        style = {"color": COLOURS[name], "ls": "--" if name in ("oracle", "random") else "-"}
        share = [100 * row["solved"] / row["n"] for row in chosen]
        left.plot(budgets, share, "o", ms=4, label=NAMES[name], **style)
        if name == "random":
            continue
        ratio = [row["length_all"] for row in chosen]
        right.plot(budgets, [point[0] for point in ratio], "o", ms=4, **style)
        if name != "oracle":
            low, high = [p[1] for p in ratio], [p[2] for p in ratio]
            right.fill_between(budgets, low, high, color=COLOURS[name], alpha=0.15)
    left.set_ylabel("solved, %")
    right.set_ylabel("tokens, times full attention's")
    right.axhline(1, color="black", lw=0.8, ls="--")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        ticks = [16, 32, 64, 128, 256, 512, 1024]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_xlabel("budget, keys a step")
        bare(axes)
    left.legend(fontsize=7, frameon=False)
    figure.suptitle("The shipped reasoner, level hard, 600 problems", fontsize=10)
    figure.tight_layout()
    save("reasoner")


def excess() -> None:
    """What the additional tokens of the sparse methods do."""
    study = numbers("study")
    classes = ["checked", "checked again", "mended", "loop", "derived again", "other", "lost"]
    axes = plt.subplots(figsize=(7, 2.8))[1]
    for offset, part in ((0.2, "first"), (-0.2, "holdout")):
        shares = study[part]["hard"]["shares"]
        for y, name in enumerate(reversed(classes)):
            share, low, high = (100 * value for value in shares[name])
            colour = "tab:blue" if part == "first" else "tab:cyan"
            label = f"{part}" if y == 0 else None
            errors = [[share - low], [high - share]]
            axes.barh(y + offset, share, 0.38, color=colour, xerr=errors, label=label)
    axes.set_yticks(range(len(classes)), list(reversed(classes)))
    axes.axvline(0, color="black", lw=0.8)
    axes.set_xlabel("share of the additional tokens, % (95% interval)")
    axes.legend(fontsize=8, frameon=False)
    bare(axes)
    save("excess")


if __name__ == "__main__":
    real_model()
    reasoner()
    excess()
