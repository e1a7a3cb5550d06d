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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pages

ROOT = Path(__file__).parents[2]
PAGE, KEPT = ROOT / "docs" / "sparse_serving.md", ROOT / "docs" / "sparse_serving.json"
Found = Mapping[str, Any]


def steps(found: Found) -> str:
    """Times of decode steps, and how they were taken."""
    heads = ("shape", "rows", "context", "vLLM's own, ms", *_ways("vllm"), *_ways("lil"))
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
    held = {(row["context"], row["policy"]): row["blocks_held"]
            for rows in found["rows"].values() for row in rows
            if row["runtime"] == "vllm"}  # fmt: skip
    blocks = "; ".join(
        f"at {context:,} tokens {held[context, 'full']:,} in full, {held[context, 'quest']:,} "
        f"under `quest`, {held[context, 'sink']:,} under `sink`"
        for context in dict.fromkeys(context for context, _ in held)
    )
    turns = {runtime: {row["turns"] for rows in found["rows"].values() for row in rows
                       if row["runtime"] == runtime} for runtime in ("vllm", "lil")}  # fmt: skip
    ((of_engine,), (of_lil,)) = turns.values()
    speed = found["bandwidth_bytes_per_s"] / 1e9
    return (
        f"{pages.table(heads, lines)}\n- {said(found)}\n- Blocks of {found['block']} that a policy "
        f"lets a row hold: {blocks}.\n- {found['device']}, {found['threads']} threads, "
        f"{speed:.0f} GB/s, vLLM {found['vllm']}, torch {found['torch']}, float32; medians of "
        f"{of_engine} turns, of {of_lil} for `lil`.\n"
    )


POLICIES = ("full", "sink", "quest")


def _ways(runtime: str) -> list[str]:
    names = POLICIES if runtime == "lil" else POLICIES[1:]
    return [f"`{name}`, {'vLLM' if runtime == 'vllm' else '`lil`'}" for name in names]


def _shape(name: str, found: Found) -> str:
    one = found["shapes"][name]
    layers = "1 layer" if one["layers"] == 1 else f"{one['layers']} layers"
    return f"{layers}, {one['Hq']} query and {one['Hkv']} KV heads of {one['D']}"


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
        told.append(one + (f", down to {min(slow):.2f} times as fast" if slow else ""))
    return "Than vLLM's own full attention " + "; ".join(told) + "."


def runtimes(found: Found) -> str:
    """Rows of both runtimes compared, and what each took."""
    counts, costs = found["counts"], {(c["method"], c["runtime"]): c for c in found["costs"]}
    heads = ("method", "equal", "score ties", "other rounding", "traced choices", "not explained",
             "tokens equal")  # fmt: skip
    kinds = ("equal", "score tie", "other rounding", "traced choice")
    lines = [
        (method, *(str(of[kind]) for kind in kinds), str(of["untraced choice"] + of["parts"]),
         f"{of['tokens']:,}")
        for method, of in counts.items()
    ]  # fmt: skip
    taken = []
    for method in counts:
        ours, theirs = (costs[method, name] for name in ("transformers", "vllm"))
        taken.append(
            (method, *(f"{one['solved']} of {one['problems']}" for one in (ours, theirs)),
             *(f"{one['tokens_per_second']:,.0f}" for one in (ours, theirs)),
             *(_of_solved(one, "keys_per_solved", ",.0f") for one in (ours, theirs)),
             *(_of_solved(one, "seconds_per_solved", ".2f") for one in (ours, theirs)))
        )  # fmt: skip
    names = ("solved", "tokens/s", "keys a solved problem", "s a solved problem")
    costs_of = [f"{name}, {runtime}" for name in names for runtime in ("`lil`", "vLLM")]
    return (
        f"{pages.table(heads, lines)}\n{_read_again(found)}\n"
        f"{pages.table(('method', *costs_of), taken)}"
    )


def _read_again(found: Found) -> str:
    """What readings of outputs that part show, and of some that are equal."""
    shown = [one["readings"] for one in found["pairs"] if one["kind"] == "other rounding"]
    told = []
    if shown:
        theirs, most = sorted(one["theirs"] for one in shown), shown[0]["readings"]
        told.append(
            f"- Where rounding gives either token, vLLM's is the likeliest in {theirs[0]} to "
            f"{theirs[-1]} of {most} readings."
        )
    again = found["equal_read_again"]
    if again:
        tokens, changed = (sum(of[name] for of in again.values()) for name in ("tokens", "changed"))
        where = _listed((of["changed"], f"{of['tokens']:,}", name) for name, of in again.items())
        tied = _listed((of["tied"], of["read"], name) for name, of in again.items())
        told.append(
            f"- Of the first {max(of['read'] for of in again.values())} equal outputs of each "
            f"method: in the place of {changed:,} of {tokens:,} tokens one of the readings has "
            f"another{where}; a choice of blocks at a tie is in {'none' if not tied else 'some'}"
            f"{tied}."
        )
    return "".join(one + "\n" for one in told)


def _listed(some: Iterable[tuple[int, object, str]]) -> str:
    """How many of how many of what, in brackets, of those with any."""
    known = [f"{count} of {of} under {name}" for count, of, name in some if count]
    return f" ({', '.join(known)})" if known else ""


#: Solved problems below which a cost of one is not told.
FEWEST = 20


def _of_solved(one: Found, name: str, form: str) -> str:
    return "-" if one["solved"] < FEWEST else f"{one[name]:{form}}"


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
