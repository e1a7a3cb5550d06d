"""Write the tables of docs/sparse_serving.md from docs/sparse_serving.json.

python scripts/pages/sparse_serving_page.py --take steps FILE      # of bench/serving/sparse_vllm.py
python scripts/pages/sparse_serving_page.py --take runtimes FILE   # of check_runtimes.py --json
python scripts/pages/sparse_serving_page.py --take churn FILE      # of check_vllm_churn.py --json
python scripts/pages/sparse_serving_page.py
python scripts/pages/sparse_serving_page.py --check    # exit code 1 if the page differs
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pages

ROOT = Path(__file__).parents[2]
PAGE, KEPT = ROOT / "docs" / "sparse_serving.md", ROOT / "docs" / "sparse_serving.json"
Found = Mapping[str, Any]


def steps(found: Found) -> str:
    """Times of decode steps, and how they were taken."""
    heads = ("layers", "rows", "context", "vLLM's own, ms", *_ways("vllm"), *_ways("lil"))
    lines = []
    for name, rows in found["rows"].items():
        for at in dict.fromkeys((row["rows"], row["context"]) for row in rows):
            by = {
                (row["runtime"], row["policy"]): row
                for row in rows
                if (row["rows"], row["context"]) == at
            }
            own = by.pop(("vllm", "full"))
            ways = (("vllm", "sink"), ("vllm", "quest"), *(("lil", one) for one in POLICIES))
            lines.append(
                (_shape(name, found), str(at[0]), f"{at[1]:,}",
                 f"{own['step_ms']:.1f} ({own['of_bound']:.0%})",
                 *(f"{by[way]['times_full']:.2f} ({by[way]['of_bound']:.0%})" for way in ways))
            )  # fmt: skip
    of_engine = [row for rows in found["rows"].values() for row in rows if row["runtime"] == "vllm"]
    held = {(row["context"], row["policy"]): row["blocks_held"] for row in of_engine}
    blocks = "; ".join(
        f"at {context:,} tokens {held[context, 'full']:,} in full, {held[context, 'quest']:,} "
        f"under `quest`, {held[context, 'sink']:,} under `sink`"
        for context in dict.fromkeys(context for context, _ in held)
    )
    return (
        f"{pages.table(heads, lines)}\n- {said(found)}\n- Blocks of {found['block']} that a row "
        f"holds: {blocks}.\n- {found['device']}, {found['threads']} threads, vLLM {found['vllm']}, "
        f"torch {found['torch']}, float32, {found['repeats']} turns.\n"
    )


POLICIES = ("full", "sink", "quest")


def _ways(runtime: str) -> list[str]:
    names = POLICIES if runtime == "lil" else POLICIES[1:]
    return [f"`{name}`, {'vLLM' if runtime == 'vllm' else '`lil`'}" for name in names]


def _shape(name: str, found: Found) -> str:
    one = found["shapes"][name]
    return f"{one['layers']} of {one['Hq']} and {one['Hkv']} heads, D {one['D']}"


def said(found: Found) -> str:
    """In how many cases each policy was faster than vLLM's full attention, in every turn."""
    told = []
    for policy in POLICIES[1:]:
        rows = [
            row
            for some in found["rows"].values()
            for row in some
            if (row["runtime"], row["policy"]) == ("vllm", policy)
        ]
        fast = [row["times_full"] for row in rows if row["faster_in"] == row["turns"]]
        slow = [row["times_full"] for row in rows if row["faster_in"] == 0]
        one = f"`{policy}` is faster in every turn in {len(fast)} of {len(rows)} cases"
        one += f", by {min(fast):.1f} to {max(fast):.1f} times" if fast else ""
        one += f", and slower in every turn in {len(slow)}"
        told.append(one + (f", {min(slow):.2f} times as fast at least" if slow else ""))
    return "Than vLLM's own full attention " + "; ".join(told) + "."


def runtimes(found: Found) -> str:
    """Rows of both runtimes compared, and what each took."""
    counts, costs = found["counts"], {(c["method"], c["runtime"]): c for c in found["costs"]}
    heads = ("method", "equal", "ties of scores", "one choice of blocks", "ties of blocks", "part",
             "tokens equal",
             "tokens/s, `lil`", "tokens/s, vLLM", "solved", "s a solved problem, `lil`",
             "s a solved problem, vLLM")  # fmt: skip
    lines = []
    for method, of in counts.items():
        ours, theirs = (costs[method, name] for name in ("transformers", "vllm"))
        solved = sorted({ours["solved"], theirs["solved"]})
        lines.append(
            (method, *(str(of[kind]) for kind in ("equal", "tie", "choice", "tied", "parts")),
             f"{of['tokens']:,}", *(f"{c['tokens_per_second']:,.0f}" for c in (ours, theirs)),
             " and ".join(map(str, solved)),
             *(_or_dash(c["seconds_per_solved"]) for c in (ours, theirs)))
        )  # fmt: skip
    return pages.table(heads, lines)


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def churn(found: Sequence[Found]) -> str:
    """What was left after many requests."""
    heads = ("attention", "prefixes", "requests", "aborted", "put back", "blocks not free",
             "tables not empty", "memory grown, MiB")  # fmt: skip
    return pages.table(heads, [
        (f"`{one['attention']}`", "shared" if one["prefix_caching"] else "not shared",
         *(f"{one[name]:,}" for name in ("requests", "aborted", "put_back", "lost", "left")),
         f"{one['growth_mib']:.1f}")
        for one in sorted(found, key=lambda one: (one["attention"], not one["prefix_caching"]))
    ])  # fmt: skip


def taken(kind: str, text: str, before: Any) -> Any:
    """What is kept of a measurement's output, whose last line is its JSON."""
    told = json.loads(text.strip().splitlines()[-1])
    if kind == "steps":
        return told
    if kind == "runtimes":
        return told | {"pairs": [one for one in told["pairs"] if one["kind"] != "equal"]}
    last = told["rounds"][-1]
    one = {name: told[name] for name in ("attention", "prefix_caching", "growth_mib", "troubles")}
    one |= {name: last[name] for name in ("requests", "aborted")}
    one["put_back"] = last["put_back_with_room"] + last["put_back_without"]
    one["lost"] = max(told["free"] - each["free"] for each in told["rounds"])
    one["left"] = sum(sum(each["tables"].values()) for each in told["rounds"])
    same = ("attention", "prefix_caching")
    rest = [old for old in before or [] if any(old[name] != one[name] for name in same)]
    return [*rest, one]


SECTIONS = {"steps": steps, "runtimes": runtimes, "churn": churn}


def main(argv: Sequence[str] | None = None) -> int:
    return pages.of_measurements(
        __doc__, PAGE, "sparse_serving_page.py", KEPT, SECTIONS, taken, argv
    )


if __name__ == "__main__":
    sys.exit(main())
