"""Write docs/results/demo.md and the README's number and table from what a sweep found.

    lil sweep --json > sweep.json                         # the demo, once
    python scripts/measuring/trace_readings.py lil-out/demo --json > readings.json
    python scripts/pages/readme_results.py --take sweep.json readings.json  # all of them
    python scripts/pages/readme_results.py --check  # print; exit code 1 if a page differs

No number of those sections is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pages
import records
import stopping_readings
import stopping_tables

ROOT = Path(__file__).parents[2]
KEPT = ("packages", "device", "threads", "dtype", "seed", "finding", "config", "counts")
FEWER_MORE = ("fewer", "more")
#: The README's table has each method at this budget, in tokens.
BUDGET = 256


def percent(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f}"


def interval(row: dict[str, Any], name: str, digits: int = 2) -> str:
    """A ratio of the row with its interval, where it has one."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    bounds = "" if None in (low, high) else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{row[name]:.{digits}f}{bounds}"


def clear(row: dict[str, Any], name: str) -> str:
    """The same, with as many digits as tell an interval beside 1 from 1."""
    near = "1.00" in (f"{row[f'{name}_low']:.2f}", f"{row[f'{name}_high']:.2f}")
    return interval(row, name, 4 if near else 2)


def claimed(row: dict[str, Any], text: str, *words: str) -> str:
    """A number, bold where it is claimed."""
    return f"**{text}**" if not set(words).isdisjoint(row["claims"]) else text


def ratio(row: dict[str, Any]) -> str:
    if row["length_ratio"] is None:
        return "-"
    return claimed(row, interval(row, "length_ratio"), "longer", "shorter")


def both(row: dict[str, Any]) -> str:
    if row["length_ratio_solved"] is None:
        return "-"
    told = f"{interval(row, 'length_ratio_solved')}, {row['solved_by_both']}"
    return claimed(row, told, "longer solved", "shorter solved")


def cost(row: dict[str, Any]) -> str:
    if row["keys_read_per_solved"] is None:
        return "none solved"
    told = interval(row, "keys_read_per_solved_ratio")
    return claimed(row, told, "fewer keys", "more keys")


def place(row: dict[str, Any]) -> str:
    return f"`{row['backend']}` {row['budget']} on {row['dataset']}"


def said(rows: list[dict[str, Any]], word: str, name: str) -> str:
    """Of which rows a claim is made, with their numbers."""
    found = [row for row in rows if word in row["claims"]]
    told = "; ".join(f"{place(row)} {interval(row, name)}" for row in found) or "none"
    return f"{len(found)} of {len(rows)}: {told}"


def methods(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each sparse configuration that is no control, without a detector."""
    return [
        row for row in rows if row["detector"] == "none" and row["role"] == "method"
        and row["budget"] is not None
    ]  # fmt: skip


def number(rows: list[dict[str, Any]]) -> str:
    """The README's first result: how many read fewer keys a token, and how many a solved problem.

    A row without a ratio of keys solves nothing.
    """
    full = {row["dataset"]: row for row in rows if row["budget"] is None}
    cheap = [
        row for row in methods(rows)
        if row["keys_read_mean"] < full[row["dataset"]]["keys_read_mean"]
    ]  # fmt: skip
    fewer, more = (sum(f"{word} keys" in row["claims"] for row in cheap) for word in FEWER_MORE)
    nothing = sum(row["keys_read_per_solved_ratio"] is None for row in cheap)
    return (
        f"Of the demo's {len(methods(rows))} configurations {len(cheap)} read fewer keys per token "
        f"than full attention. **A solved problem takes fewer keys in {fewer} of these "
        f"{len(cheap)}**, more in {more}; {nothing} solve none, and of the rest neither may be "
        "said. The model is small and [was taught part of this](#what-the-demo-found)."
    )


def overview(rows: list[dict[str, Any]], factor: int) -> list[str]:
    """The README's table: a row a backend, all levels in a cell."""
    plain = [row for row in rows if row["detector"] == "none"]
    levels = list(dict.fromkeys(row["dataset"] for row in plain))
    full = [row for row in plain if row["backend"] == "full"]
    chosen = [
        row for row in plain
        if row["budget"] in (None, BUDGET) or row["role"] == "control"
    ]  # fmt: skip
    tokens = " / ".join(f"{row['mean_tokens']:.0f}" for row in full)
    lines = [
        f"Each cell: {' / '.join(levels)}, {full[0]['n']} problems each, of which full attention "
        f"takes {tokens} tokens; outputs have at most {factor} times as many. Bold: what may be "
        "claimed.",
        "",
        "| backend | budget | solved, % | output length / full attention's | keys read per solved "
        "problem / full attention's |",
        "|---|---|---|---|---|",
    ]
    for backend in dict.fromkeys(row["backend"] for row in chosen):
        mine = [row for row in chosen if row["backend"] == backend]
        solved, length, keys = (
            " / ".join(map(cell, mine)) for cell in (short_solved, short_length, short_cost)
        )
        control = ", a control" if mine[0]["role"] == "control" else ""
        budget = mine[0]["budget"] or "all"
        lines.append(f"| `{backend}`{control} | {budget} | {solved} | {length} | {keys} |")
    return lines


def short_solved(row: dict[str, Any]) -> str:
    return claimed(row, percent(row["accuracy"]), "loses", "gains")


def short_length(row: dict[str, Any]) -> str:
    return claimed(row, f"{row['length_ratio']:.2f}", "longer", "shorter")


def short_cost(row: dict[str, Any]) -> str:
    if row["keys_read_per_solved"] is None:
        return "none solved"
    return claimed(row, f"{row['keys_read_per_solved_ratio']:.2f}", "fewer keys", "more keys")


def readings(rows: list[dict[str, Any]], factor: int) -> list[str]:
    """What is claimed of which configurations, at both caps, and what cannot be."""
    sparse = methods(rows)
    lines = [f"What may be claimed, read at {factor} times full attention's length:", ""]
    for what, word, name in (
        ("Longer", "longer", "length_ratio"),
        ("Shorter", "shorter", "length_ratio"),
        ("Longer where both solve", "longer solved", "length_ratio_solved"),
        ("Fewer keys per solved problem", "fewer keys", "keys_read_per_solved_ratio"),
        ("More keys per solved problem", "more keys", "keys_read_per_solved_ratio"),
    ):
        lines.append(f"- {what}, {said(sparse, word, name)}.")
    for at, cap in enumerate(sparse[0]["caps"] if sparse else ()):
        smaller = [row | row["caps"][at] for row in sparse]
        lines += ["", f"The same texts read at {cap['factor']} times, the paper's cap:", ""]
        for what, word, name in (
            ("Longer", "longer", "length_ratio"),
            ("Shorter", "shorter", "length_ratio"),
            ("Longer where both solve", "longer solved", "length_ratio_solved"),
        ):
            lines.append(f"- {what}, {said(smaller, word, name)}.")
    return lines


#: Sentences of `trace_readings.py` that the page holds, in its order.
COUNTED = (
    "first", "once_right", "unsolved", "gave_up", "shorter", "longer", "before_and_after", "checks",
    "full", "wasted", "guardian:stop", "cycle:stop",
)  # fmt: skip


def gave_up(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The share of a sparse configuration's outputs that give up."""
    sparse = [
        row for row in rows if row["role"] == "method" and row["backend"] not in ("all", "full")
    ]
    return {
        f"{row['backend']} {row['budget']} on {row['dataset']}": row["gave_up"] / row["n"]
        for row in sparse
        if row["dataset"] != "all"
    }


def counted(document: dict[str, Any]) -> list[str]:
    """What a program counted in the texts themselves."""
    known = document["sentences"]
    return [f"- {known[name]}" for name in COUNTED if name in known]


#: The detectors shown beside the demo: as the paper gives it, as the demo has it, and ours.
SHOWN = {**stopping_readings.GUARDIANS, "cycle(repeats=2, min_tokens=60)": "ours"}


#: What is shown of each; `lost` and `gained` are of outputs that differ from full attention's.
HEADS = (
    "W spared, cut, %", "W spared, ended, %", "L spared, %", "T spared, %", "lost", "gained",
    "net, points",
)  # fmt: skip


def stopping(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The paper's detector and ours on problems never used while choosing, smallest cap first."""
    lines = [
        "| detector | then | cap, times full | W spared, cut, % | W spared, ended, % | "
        "L spared, % | T spared, % | lost | gained | net, points | safe |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cap in (2, 4):
        rows = found[f"greedy-{cap}"]
        if absent := SHOWN.keys() - {row["detector"] for row in rows}:
            raise RuntimeError(f"docs/actions.json has no {', '.join(sorted(absent))}")
        for row in rows:
            if row["detector"] not in SHOWN:
                continue
            lines.append(
                f"| `{row['detector']}`, {SHOWN[row['detector']]} | {row['action']} | {cap} | "
                + "".join(f"{stopping_tables.COLUMNS[head](row)} | " for head in HEADS)
                + f"{'yes' if stopping_readings.is_safe(row) else 'no'} |"
            )
    about = stopping_tables.about(found["greedy-2"])
    return [
        "Stopping, on problems that no detector was chosen on; safe as [actions.md](actions.md) "
        f"says. At a cap of twice full attention: {about}",
        "",
        *lines,
    ]


def render(
    document: dict[str, Any],
    found: dict[str, list[dict[str, Any]]],
    read: dict[str, Any],
    again: dict[str, Any],
) -> str:
    """The page of the demo: conditions, a table a level, and what stands out, from the rows.

    Args:
        document: docs/demo.json.
        found: what docs/actions.json has of detectors.
        read: docs/readings.json, what `trace_readings.py` counted.
        again: docs/replicated.json, what `replicated_claims.py` found.
    """
    rows = [row for row in document["rows"] if row["penalty"] == "none"]
    manifest = document["manifest"]
    factor = int(manifest["config"]["cap"].partition("x")[0])
    versions = manifest["packages"]
    lines = [
        f"torch {versions['torch']}, transformers {versions['transformers']}, "
        f"{manifest['device']}, {manifest['threads']} thread"
        f"{'' if manifest['threads'] == 1 else 's'}, {manifest['dtype']}, seed "
        f"{manifest['seed']}. At most {factor} times full attention's tokens. Brackets: 95% "
        "intervals, none where fewer than six problems differ. Bold: what may be claimed "
        "([experiments.md](../experiments.md#what-a-measure-means)).",
        "",
    ]
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        plain = [r for r in rows if r["dataset"] == dataset and r["detector"] == "none"]
        lines += [
            f"## {dataset}: {plain[0]['n']} problems, full attention "
            f"{plain[0]['mean_tokens']:.0f} tokens",
            "",
            "| backend | budget | solved, % | length / full | other length | cut, % | "
            "length, both solve, n | keys per solved / full |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for row in plain:
            low, high = percent(row["accuracy_low"]), percent(row["accuracy_high"])
            start = (
                f"| `{row['backend']}` | {row['budget'] or 'all'} | "
                f"{claimed(row, percent(row['accuracy']), 'loses', 'gains')} [{low}, {high}] | "
            )
            if row["backend"] == "full":
                lines.append(f"{start}1 | - | {percent(row['capped'] / row['n'])} | - | 1 |")
                continue
            lines.append(
                f"{start}{ratio(row)} | {row['length_ratio_differs']} | "
                f"{percent(row['capped'] / row['n'])} | {both(row)} | {cost(row)} |"
            )
        lines.append("")
    lines += [
        "## What is claimed",
        "",
        f"As `lil sweep` says it: {manifest['finding']}",
        "",
        *readings(rows, factor),
        "",
        "## What the texts say",
        "",
        "Counted by a program that reads the reasoner's language:",
        "",
        *counted(read),
        "",
        "## Detectors",
        "",
        *stopping(found),
        "",
        "## On other problems",
        "",
        *others(again),
        "",
    ]
    return "\n".join(lines)


#: What becomes of a claim on other problems, in words.
FATES = {
    "holds": "are made there, too",
    "same side": "are not, with a number on the same side of no change",
    "other side": "are not, with a number on the other side",
    "reversed": "are the opposite there",
}


def others(again: dict[str, Any]) -> list[str]:
    """Which claims of the demo are made on problems that it had no part in.

    Args:
        again: docs/replicated.json, what `replicated_claims.py` found.
    """
    claims = again["claims"]
    counts = [
        f"{sum(one['fate'] == fate for one in claims)} {words}" for fate, words in FATES.items()
    ]
    solved = "; ".join(
        f"`{name}` solves {n} of {of}" for name, (n, of) in again["controls"].items()
    )
    lines = [
        f"The same sweep on {again['limit'] * len(again['datasets'])} problems of the split "
        f"`{again['split']}`, {again['limit']} of each level. Of the {len(claims)} claims about "
        "lengths, keys and answers, at both caps and over all levels together, "
        f"{', '.join(counts)}. Controls there: {solved}.",
        "",
        "Not made there:",
        "",
    ]
    for one in claims:
        if one["fate"] != "holds":
            dataset, backend, budget, _, cap = one["of"]
            at = "" if cap == "cap" else f", read at {cap} times"
            lines.append(f"- `{backend}` {budget} on {dataset}{at}: {one['claim']} ({one['fate']})")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    told = "outputs of `lil sweep --json` and of `trace_readings.py --json`"
    parser.add_argument("--take", type=Path, nargs=2, metavar=("SWEEP", "READINGS"), help=told)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    args = parser.parse_args()
    kept = ROOT / "docs" / "demo.json"
    if args.take:
        document, read = (json.loads(file.read_text()) for file in args.take)
        document["manifest"] = {key: document["manifest"].get(key) for key in KEPT}
        for row in document["rows"]:
            del row["compression_curve"]  # long, and drawn in the figures
        del document["pooled"]
        records.write(kept, document)
        (ROOT / "docs" / "readings.json").write_text(
            json.dumps(
                {"sentences": read["sentences"], "gave_up": gave_up(read["rows"])},
                indent=1,
                ensure_ascii=False,
            )
            + "\n"
        )
    found = records.read(ROOT / "docs" / "actions.json")["stopping"]
    read = json.loads((ROOT / "docs" / "readings.json").read_text())
    again = json.loads((ROOT / "docs" / "replicated.json").read_text())
    document = records.read(kept)
    rows = [row for row in document["rows"] if row["penalty"] == "none"]
    factor = int(document["manifest"]["config"]["cap"].partition("x")[0])
    differ = [
        pages.put(page, "readme_results.py", section, args.check, name)
        for page, section, name in (
            (ROOT / "README.md", number(rows), "number"),
            (ROOT / "README.md", "\n".join(overview(rows, factor)), "table"),
            (
                ROOT / "docs" / "results" / "demo.md",
                render(document, found, read, again),
                "results",
            ),
        )
    ]
    return max(differ)


if __name__ == "__main__":
    sys.exit(main())
