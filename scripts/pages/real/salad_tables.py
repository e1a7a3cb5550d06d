"""Tables of real models' loops, and of what detectors and choppers see of them."""

from __future__ import annotations

from collections.abc import Iterator

from loop_readings import KINDS
from pages import chance, table
from wording import LEVEL, MODELS, Row, name_of, number

from experiments.report.statistics import holm, mcnemar, wilson

# Counts of a detector, over the methods of one sweep.
_SUMMED = ("loops", "caught", "ended", "stopped_ended", "stopped_solved", "before_onset")
#: Accuracy and AUROC of the chopper's classifier, in %: DeepSeek-R1-Distill-Qwen-7B on GSM8K,
#: Word Salad Chopper (Xie et al., 2025), Table 5, by temperature.
PAPER = {0.0: (92.72, 98.63), 0.6: (91.42, 96.22)}


def in_short(found: dict[str, Row]) -> Iterator[str]:
    """What may be said of loops, each with its count."""
    for part in found.values():
        if "loops" not in part:
            continue
        rows = [row for row in part["loops"] if row["role"] != "null"]
        whole = next(row for row in rows if row["budget"] is None)
        share = wilson(_looping(whole), whole["n"])
        if share.low is None or share.high is None:
            continue
        others = [row for row in rows if row["budget"] is not None]
        moved = holm([mcnemar(row["loops_full"], row["loops_here"]) for row in others])
        told = "; ".join(
            f"under {name_of(row)} {_looping(row)}, "
            + ("not told apart" if p > LEVEL else
               "more" if row["loops_here"] > row["loops_full"] else "fewer")
            for row, p in zip(others, moved, strict=True)
        )  # fmt: skip
        yield (
            f"{MODELS.get(whole['model'], whole['model'])} at temperature {part['temperature']}: "
            f"under full attention {_looping(whole)} of {whole['n']} texts end in a loop "
            f"({100 * share.low:.0f} to {100 * share.high:.0f}%); {told} (exact McNemar, Holm)."
        )


def _looping(row: Row) -> int:
    return sum(row[kind] for kind in KINDS)


def loops(found: dict[str, Row]) -> Iterator[str]:
    """How texts end."""
    parts = [part for part in found.values() if "loops" in part]
    if not parts:
        return
    yield "## Word salad\n"
    yield table(
        ("model", "temperature", "attention", "texts", "ended", *KINDS, "long", "20 times a block",
         "onset, median", "tokens in loops, %", "loops only here / only full", "p"),
        [
            (
                MODELS.get(row["model"], row["model"]), str(part["temperature"]), name_of(row),
                *(str(row[x]) for x in ("n", "ended", *KINDS, "long", "degenerate")),
                "" if row["onset"] is None else f"{row['onset']:.0f}",
                f"{100 * row['tokens_in_loops'] / row['tokens']:.0f}",
                f"{row['loops_here']} / {row['loops_full']}",
                chance(mcnemar(row['loops_full'], row['loops_here'])),
            )
            for part in parts
            for row in part["loops"]
        ],
        3,
    )  # fmt: skip
    yield "## What detectors see of it\n"
    lines = []
    for part in parts:
        every: dict[tuple[str, str], list[Row]] = {}
        for row in part["watched"]:
            every.setdefault((row["detector"], row["action"]), []).append(row)
        for (detector, _), rows in every.items():
            sums = {
                key: sum(row[key] for row in rows)
                for key in _SUMMED
            }  # fmt: skip
            late = [row["late"] for row in rows if row["late"] is not None]
            lines.append((
                MODELS.get(part["loops"][0]["model"], ""), str(part["temperature"]),
                f"`{detector}`",
                f"{sums['caught']} of {sums['loops']}",
                f"{min(late):.0f} to {max(late):.0f}" if late else "",
                str(sums["before_onset"]),
                f"{sums['stopped_ended']} of {sums['ended']}", str(sums["stopped_solved"]),
            ))  # fmt: skip
    heads = ("model", "temperature", "detector", "loops caught", "tokens behind the onset",
             "before it", "stopped, of texts that end", "of these right")  # fmt: skip
    yield table(heads, lines, 3)


def chopper(found: dict[str, Row]) -> Iterator[str]:
    """What a classifier trained as its authors do tells of hidden states."""
    parts = {name: part for name, part in found.items() if name.startswith("chopper-")}
    if not parts:
        return
    yield "## Word Salad Chopper, trained\n"
    lines, refusals = [], []
    for name, part in parts.items():
        model, _, how = name.removeprefix("chopper-").rpartition("-")
        called = MODELS.get(model, model)
        if "refused" in part:
            # Without a classifier there is nothing to measure on other texts.
            if how == "greedy" or "refused" not in found.get(f"chopper-{model}-greedy", {}):
                refusals.append(f"{called}, {how}: {part['refused']}.")
            continue
        temperature = found.get(f"{model}-{how}", {}).get("temperature")
        for half, rows in part.items():
            for row in rows:
                lines.append((
                    called, "" if temperature is None else str(temperature),
                    half.replace("_", " "), row["backend"],
                    str(row["traces"]), str(row["salad_traces"]),
                    str(row["chunks"]), str(row["salad"]),
                    number(row, "accuracy", ".1f", 100), number(row, "auroc", ".1f", 100),
                    f"{row['chopped_salad']} / {row['chopped_sound']}",
                ))  # fmt: skip
    heads = ("model", "temperature", "problems", "attention", "texts", "with word salad",
             "chunks", "word salad", "accuracy, %", "AUROC, %",
             "chopped, with / without")  # fmt: skip
    theirs = [
        ("DeepSeek-R1-Distill-Qwen-7B, in the paper", str(at), "others", "full", *[""] * 4,
         f"{accuracy:.2f}", f"{auroc:.2f}", "")
        for at, (accuracy, auroc) in PAPER.items()
    ]  # fmt: skip
    if lines:
        yield table(heads, [*lines, *theirs], 4)
        yield (
            "Labels by all-MiniLM-L6-v2, cosine 0.99, ten repeated chunks in a row; a linear layer "
            "on the second-last block's state at each blank line, trained as its authors do on "
            "greedy texts, of every method together. Accuracy and AUROC are of chunks of more than "
            "ten tokens. Held out is every fifth problem, the same ones of texts drawn at a "
            "temperature. The paper's figures are its Table 5 (Xie et al., 2025), of a reasoning "
            "model on GSM8K, trained on 1,000 traces of other questions.\n"
        )
    yield from (f"Not to be had: {line}\n" for line in refusals)


def recalibrated(found: dict[str, Row]) -> Iterator[str]:
    """Detectors set on half of the problems, and what they do on the other half."""
    parts = {name: part for name, part in found.items() if name.startswith("recalibrated-")}
    if not parts:
        return
    yield "## Detectors set anew\n"
    lines = []
    for part in parts.values():
        for row in part.get("rows", ()):
            ours, new = row["default"], row["chosen"]
            lines.append((
                MODELS.get(part["model"], part["model"]), str(part["temperature"]),
                f"`{row['detector']}`", row["chosen_on"],
                f"{row['clean_problems']}, {100 * row['rate']:g}%",
                f"{row['parameter']} {ours['value']:g}", *_done(ours),
                *(("none", "", "", "") if new is None else
                  (f"{new['value']:g}" if row["differs"] else "the same", *_done(new))),
            ))  # fmt: skip
    does = ("loops caught", "tokens saved, %", "stopped, of texts that end (right)")
    heads = ("model", "temperature", "detector", "set on", "problems, promise",
             "default", *does, "set anew", *does)  # fmt: skip
    if lines:
        yield table(heads, lines, 5)
        yield (
            "Set by the rule of `lil calibrate` on problems with odd or even numbers and read on "
            "the others. Promise: of texts that should end, so many are stopped at most, with 95% "
            "confidence; the lowest share that so many problems can prove. `none`: the most "
            "cautious setting does not keep it. `outside=0`: a detector's own threshold also where "
            "no thinking is opened; without it 1,000 repeated tokens have to come.\n"
        )
    for name, part in parts.items():
        if "refused" in part:
            yield f"{name.removeprefix('recalibrated-')}: {part['refused']}.\n"


def _done(told: Row) -> tuple[str, str, str]:
    return (
        f"{told['caught']} of {told['loops']}",
        f"{100 * told['tokens_saved'] / told['tokens']:.1f}",
        f"{told['stopped_ended']} of {told['ended']} ({told['stopped_solved']})",
    )
