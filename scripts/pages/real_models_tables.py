"""Write docs/results/real_models.md from what was measured of real models.

    python scripts/measuring/real/measure_real_models.py lil-out/real --gsm8k FILE  # all, then this
    python scripts/pages/real_models_tables.py --take lil-out/real              # this alone
    python scripts/pages/real_models_tables.py --traces docs/results/traces     # from stored texts
    python scripts/pages/real_models_tables.py --check     # print; exit code 1 if the page differs

Numbers are kept in docs/real_models_results.json; parts that are not there to take stay as they
are: of stored texts choppers, which need the model, and a first use. No number of the page is typed
by hand.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pages
import records
from pages import chance, table

from experiments.report.statistics import holm, mcnemar, wilson

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts" / "measuring" / "real"))

from loop_readings import KINDS  # noqa: E402
from real_results import taken, unpacked  # noqa: E402

KEPT = ROOT / "docs" / "real_models_results.json"
MODELS = {"smollm2": "SmolLM2-135M", "qwen-coder-0.5b": "Qwen2.5-Coder-0.5B",
          "qwen-coder-1.5b": "Qwen2.5-Coder-1.5B"}  # fmt: skip
Row = dict[str, Any]
# Counts of a detector, over the methods of one sweep.
_SUMMED = ("loops", "caught", "ended", "stopped_ended", "stopped_solved", "before_onset")
#: The methods whose lengths docs/study/plan.md compares first, and what it takes for no change.
PRIMARY = ("quest", "h2o", "sink")
MARGIN = 1.05
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


def conditions(part: Row) -> str:
    """What its numbers depend on."""
    weights = "" if part["weights"] == "stored" else f", linear layers in {part['weights']}"
    how = "greedy" if not part["temperature"] else f"temperature {part['temperature']}"
    return f"{part['dtype']}{weights}, {how}, at most {part['cap']} tokens."


def planned(part: Row) -> tuple[list[Row], list[float], list[float], Row]:
    """The planned comparisons: rows, p of their lengths and of their answers, and the null's row.

    Both kinds of p are corrected for all of the rows.
    """
    rows = [
        row
        for row in part["rows"]
        if row["backend"] in PRIMARY and not keeps_prompt(row) and row["role"] != "null"
    ]
    flips = [1.0 if (p := row["length_ratio_solved_p"]) is None else p for row in rows]
    moved = [mcnemar(row["solved_lost"], row["solved_gained"]) for row in rows]
    null = next(row for row in part["rows"] if row["role"] == "null")
    return rows, holm(flips), holm(moved), null


def short(found: dict[str, Row]) -> Iterator[str]:
    """What may be said, each with its count."""
    lines = []
    if "table" in found:
        rows, flips, moved, null = planned(found["table"])
        ratio = null["length_ratio_solved"] or 1.0
        said = [verdict(row, p, ratio) for row, p in zip(rows, flips, strict=True)]
        told = ", ".join(f"{name} in {said.count(name)}" for name in dict.fromkeys(said))
        lost, gained = (
            sum(
                p <= LEVEL and (row["solved_lost"] > row["solved_gained"]) == less
                for row, p in zip(rows, moved, strict=True)
            )
            for less in (True, False)
        )
        lines += [
            f"Where both solve, tokens over full attention's are, of {len(rows)} planned "
            f"comparisons: {told}.",
            f"Answers are lost in {lost} of these {len(rows)} and gained in {gained} (exact "
            "McNemar, Holm).",
        ]
        every = [row for row in found["table"]["rows"] if row["budget"] is not None]
        flips = holm([1.0 if (p := row["length_ratio_p"]) is None else p for row in every])
        apart = [row for row, p in zip(every, flips, strict=True) if p <= LEVEL]
        longer = [
            f"{name_of(row)} ({number(row, 'length_ratio')}, {row['capped']} of {row['n']} cut)"
            for row in apart
            if row["length_ratio_low"] is not None and row["length_ratio_low"] > 1
        ]
        shorter = [
            f"{name_of(row)} ({number(row, 'length_ratio')})"
            for row in apart
            if row["length_ratio_high"] is not None and row["length_ratio_high"] < 1
        ]
        lines.append(
            f"Over all problems, solved or not, texts are longer in {len(longer)} of {len(every)} "
            f"configurations{_listed(longer)} and shorter in {len(shorter)}{_listed(shorter)} "
            "(sign flips, Holm)."
        )
    for part in found.values():
        if "loops" not in part:
            continue
        rows = [row for row in part["loops"] if row["role"] != "null"]
        whole = next(row for row in rows if row["budget"] is None)
        share = wilson(_looping(whole), whole["n"])
        if share.estimate is None or share.low is None or share.high is None:
            continue
        others = [row for row in rows if row["budget"] is not None]
        moved = holm([mcnemar(row["loops_full"], row["loops_here"]) for row in others])
        told = "; ".join(
            f"under {name_of(row)} {_looping(row)}, "
            + ("not told apart" if p > LEVEL else
               "more" if row["loops_here"] > row["loops_full"] else "fewer")
            for row, p in zip(others, moved, strict=True)
        )  # fmt: skip
        lines.append(
            f"{MODELS.get(whole['model'], whole['model'])} at temperature {part['temperature']}: "
            f"under full attention {_looping(whole)} of {whole['n']} texts end in a loop "
            f"({100 * share.low:.0f} to {100 * share.high:.0f}%); {told} (exact McNemar, Holm)."
        )
    if lines:
        yield "## In short\n"
        yield "".join(f"- {line}\n" for line in lines)


def _looping(row: Row) -> int:
    return sum(row[kind] for kind in KINDS)


def _listed(names: Sequence[str]) -> str:
    return f": {', '.join(names)}," if names else ""


def full(found: dict[str, Row]) -> Iterator[str]:
    """Full attention's accuracy."""
    parts = ("qwen-coder-0.5b-greedy", "bf16-0.5b", "full-1.5b", "smollm2-greedy")
    rows = [
        (found[part], row)
        for part in parts
        if part in found
        for row in found[part]["rows"]
        if row["backend"] == "full" and row["role"] != "null"
    ]
    if not rows:
        return
    yield "## Full attention on GSM8K\n"
    yield table(
        ("model", "weights", "problems", "solved, %", "cut at the cap", "mean tokens"),
        [
            (
                MODELS.get(row["model"], row["model"]),
                part["dtype"] if part["weights"] == "stored" else part["weights"],
                str(row["n"]),
                number(row, "accuracy", ".1f", 100),
                str(row["capped"]),
                number(row, "mean_tokens", ".0f"),
            )
            for part, row in rows
        ],
        2,
    )


def sparse(found: dict[str, Row]) -> Iterator[str]:
    """The table of sparse methods."""
    if "table" not in found:
        return
    part, counts = found["table"], ("solved_lost", "solved_gained", "capped")
    yield "## Sparse attention on GSM8K\n"
    yield table(
        (
            "Qwen2.5-Coder-1.5B", "solved", "lost", "gained", "cut", "tokens, all",
            "tokens, both solve", "both", "keys / solved",
        ),
        [
            (
                name_of(row),
                f"{round(row['accuracy'] * row['n'])} of {row['n']}",
                *("" if row[x] is None else str(row[x]) for x in counts),
                number(row, "length_ratio"),
                number(row, "length_ratio_solved"),
                str(row["solved_by_both"] or ""),
                number(row, "keys_read_per_solved_ratio"),
            )
            for row in part["rows"]
        ],
    )  # fmt: skip
    yield (
        "Ratios to full attention on the same problems, geometric means with 95% intervals; keys / "
        "solved: of all keys read to the problems solved, over full attention's. "
        f"{conditions(part)}\n"
    )


def keeps_prompt(row: Row) -> bool:
    """Whether a method was told to keep the prompt."""
    return bool(dict(row["backend_params"]).get("keep_prompt"))


def verdict(row: Row, p: float, null: float) -> str:
    """What the plan lets be said of tokens where both solve.

    Args:
        row: of a method; its interval is None where fewer than six problems differ.
        p: of its sign flips, corrected.
        null: full attention's own ratio, with noise.
    """
    ratio, low, high = (row[f"length_ratio_solved{end}"] for end in ("", "_low", "_high"))
    if ratio is None or low is None or high is None:
        return "too few differ"
    if p <= LEVEL and (low > 1 or high < 1):
        if abs(math.log(ratio)) <= abs(math.log(null)):
            return "no more than the null"
        return "longer" if ratio > 1 else "shorter"
    return "within 5%" if low >= 1 / MARGIN and high <= MARGIN else "open"


def primary(found: dict[str, Row]) -> Iterator[str]:
    """The comparisons that docs/study/plan.md names first."""
    if "table" not in found:
        return
    rows, flips, moved, null = planned(found["table"])
    yield "### The six comparisons planned\n"
    yield table(
        ("", "both solve", "tokens", "p, Holm", "said", "lost", "gained", "p, Holm"),
        [
            (
                name_of(row),
                str(row["solved_by_both"]),
                number(row, "length_ratio_solved"),
                chance(p),
                verdict(row, p, null["length_ratio_solved"] or 1.0),
                str(row["solved_lost"]),
                str(row["solved_gained"]),
                chance(of_answers),
            )
            for row, p, of_answers in zip(rows, flips, moved, strict=True)
        ],
    )
    yield (
        "Tokens over full attention's where both solve. Said by [the plan](../study/plan.md): "
        "*longer* or *shorter* where sign flips corrected for all six leave 5% or less and the "
        "interval leaves out 1; "
        "*within 5%* where the interval lies there; else *open*. "
        f"The null is {number(null, 'length_ratio_solved')}, "
        f"{null['solved_lost']} lost and {null['solved_gained']} gained.\n"
    )  # fmt: skip


def paired(found: dict[str, Row]) -> Iterator[str]:
    """Methods beside the oracle and beside themselves without the prompt."""
    if "table" not in found:
        return
    yield "### Beside `oracle`, and with the prompt beside without\n"
    yield table(
        ("", "beside", "solved", "beside it", "lost", "gained", "p", "tokens, both solve", "both"),
        [
            (
                f"{row['method']} {row['budget']}" + (" with the prompt" * row["keep_prompt"]),
                row["beside"] + (" without it" * (row["beside"] == row["method"])),
                *(str(row[x]) for x in ("solved", "solved_beside", "lost", "gained")),
                chance(row["p"]),
                number(row, "ratio"),
                str(row["both"]),
            )
            for row in found["table"]["paired"]
        ],
        2,
    )
    told = "Lost and gained: problems that only the other, or only the first, solves. "
    yield f"{told}No p is corrected here.\n"


def cold(found: dict[str, Row]) -> Iterator[str]:
    """What a first use takes."""
    if "cold-start" not in found:
        return
    part = found["cold-start"]
    yield "## From an empty folder\n"
    yield table(
        ("command", "seconds", "memory of its largest process, MB"),
        [
            (f"`{line['command']}`", f"{line['seconds']:.0f}", str(line["peak_mb"]))
            for line in part["lines"]
        ],
    )
    yield f"Nothing fetched, converted or compiled before; {part['conditions']['cpus']} CPUs.\n"


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


#: Accuracy and AUROC of the chopper's classifier, in %: DeepSeek-R1-Distill-Qwen-7B on GSM8K,
#: Word Salad Chopper (Xie et al., 2025), Table 5, by temperature.
PAPER = {0.0: (92.72, 98.63), 0.6: (91.42, 96.22)}


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


def penalties(found: dict[str, Row]) -> Iterator[str]:
    """Degenerate texts against accuracy, by temperature."""
    parts = {name: part for name, part in found.items() if name.startswith("penalties-")}
    if not parts:
        return
    yield "## Penalties\n"
    models = dict.fromkeys(part["rows"][0]["model"] for part in parts.values())
    for model in models:
        mine = sorted(
            (part for part in parts.values() if part["rows"][0]["model"] == model),
            key=lambda part: part["temperature"],
        )
        by_penalty: dict[str, dict[float, Row]] = {}
        for part in mine:
            for row in part["rows"]:
                if row["role"] != "null":
                    by_penalty.setdefault(row["penalty"], {})[part["temperature"]] = row
        heads = [f"T {part['temperature']}" for part in mine]
        yield f"### {MODELS.get(model, model)}: degenerate, % / solved, %\n"
        yield table(
            ("penalty", *heads),
            [
                (
                    penalty,
                    *(
                        f"{100 * row['repetition_rate']:.0f} / {100 * row['accuracy']:.0f}"
                        if (row := of.get(part["temperature"])) is not None
                        else ""
                        for part in mine
                    ),
                )
                for penalty, of in by_penalty.items()
            ],
        )
        yield f"Of {mine[0]['rows'][0]['n']} texts each. {conditions(mine[0])}\n"


#: Of the page, in order.
SECTIONS = (short, full, sparse, primary, paired, loops, chopper, recalibrated, penalties, cold)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--take", type=Path, help="the folder that was measured into")
    parser.add_argument("--traces", type=Path, help="a folder of packed stores, instead")
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args(argv)
    kept = records.read(KEPT) if KEPT.exists() else {}
    if args.take is not None:
        kept = taken(args.take, kept)
    if args.traces is not None:
        with tempfile.TemporaryDirectory() as folder:
            unpacked(args.traces, Path(folder))
            kept = taken(Path(folder), kept)
    if not args.check and (args.take is not None or args.traces is not None):
        records.write(KEPT, kept)
    section = "\n".join([line for part in SECTIONS for line in part(kept)])
    page = ROOT / "docs" / "results" / "real_models.md"
    if not page.exists():
        parser.error(f"{page} is not there: it has the place for the tables")
    return pages.put(page, "real_models_tables.py", section, args.check)


if __name__ == "__main__":
    sys.exit(main())
