"""Write the tables of docs/sparse_serving.md from docs/sparse_serving.json.

python scripts/pages/sparse_serving_page.py --take steps FILE    # of bench/serving/sparse_vllm.py
python scripts/pages/sparse_serving_page.py --take runtimes FILE # of check_runtimes.py --json
python scripts/pages/sparse_serving_page.py --take churn FILE    # of check_vllm_churn.py --json
python scripts/pages/sparse_serving_page.py --take paged FILE    # of bench/serving/sparse_flash.py
python scripts/pages/sparse_serving_page.py --take checked FILE  # of check_paged_flash.py
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
    rows = [row for some in found["rows"].values() for row in some if row["runtime"] == "vllm"]
    return f"Than vLLM's own full attention {_faster(rows, POLICIES[1:])}."


def _faster(every: Sequence[Found], policies: Sequence[str]) -> str:
    """In how many cases each policy was faster than full attention in every turn, or slower."""
    told = []
    for policy in policies:
        rows = [row for row in every if row["policy"] == policy]
        fast = [row["times_full"] for row in rows if row["faster_in"] == row["turns"]]
        slow = [row["times_full"] for row in rows if row["faster_in"] == 0]
        one = f"`{policy}` is faster in every turn in {len(fast)} of {len(rows)} cases"
        one += f", by {min(fast):.1f} to {max(fast):.1f} times" if fast else ""
        one += f", and slower in every turn in {len(slow)}"
        told.append(one + (f", down to {min(slow):.2f} times as fast" if slow else ""))
    return "; ".join(told)


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


def paged(found: Found) -> str:
    """Times of decode steps on a GPU, and how they were taken."""
    policies = [name for name in found["policies"] if name != "full"]
    heads = ("shape", "rows", "context", "full, ms", *(f"`{name}`" for name in policies))
    lines = []
    for name, rows in found["rows"].items():
        by = {(row["rows"], row["context"], row["policy"]): row for row in rows}
        for count, context in dict.fromkeys((row["rows"], row["context"]) for row in rows):
            full, *ways = (by[count, context, one] for one in ("full", *policies))
            lines.append(
                (_shape(name, found), str(count), f"{context:,}",
                 f"{full['step_ms']:.3f} ({full['host_ms']:.3f})",
                 *(f"{way['times_full']:.2f} ({way['host_times_full']:.2f})" for way in ways))
            )  # fmt: skip
    every = [row for rows in found["rows"].values() for row in rows]
    chosen = [row for row in every if row["compared_by"] is not None]
    alone = [row["host_ms"] for row in chosen if row["rows"] == 1]
    launched = [row["launch_ms"] for row in every if (row["rows"], row["policy"]) == (1, "full")]
    held = [row["captured_times_full"] / row["times_full"] for row in chosen]
    plans = [row["plan_ms"] for row in every if row["plan_ms"] is not None]
    return (
        f"{pages.table(heads, lines)}\n"
        f"- On the device alone {_faster(every, policies)}.\n"
        f"- As the host launches them the median step is shorter than full attention's under "
        f"{'; '.join(_with_host(every, policy) for policy in policies)}.\n"
        f"- The host's speed changed within the run: it launches full attention of one row in "
        f"{min(launched):.2f} to {max(launched):.2f} ms, a step of one row that chooses blocks "
        f"takes {min(alone):.1f} to {max(alone):.1f} ms, and the plan, once a step for all layers, "
        f"{min(plans):.1f} to {max(plans):.1f} ms.\n"
        f"- Where CUDA graphs hold both, ratios of steps that choose blocks are {min(held):.2f} to "
        f"{max(held):.2f} times those on the device alone.\n"
        f"- {_place(found)}; {found['dtype']}, blocks of {found['block']}; a copy moves "
        f"{found['bandwidth_bytes_per_s'] / 1e12:.1f} TB/s; medians of {every[0]['turns']} turns.\n"
    )


def _place(found: Found) -> str:
    kernel, device = found["kernel"], found["device"]
    versions = ", ".join(f"{name} {found[name]}" for name in ("torch", "triton"))
    return f"{kernel} of vLLM {found['vllm']} on {device}, {versions}"


def _with_host(every: Sequence[Found], policy: str) -> str:
    times = [row["host_times_full"] for row in every if row["policy"] == policy]
    count = sum(one > 1 for one in times)
    most = f", up to {max(times):.1f} times" if count else ""
    return f"`{policy}` in {count} of {len(times)} cases{most}"


def checked(found: Found) -> str:
    """What was right on a GPU, beside float64."""
    cases, of = found["cases"], found["sums"]
    return (
        f"- {cases['all'] - cases['failed']} of {cases['all']} cases pass: "
        f"{cases['policies']} policies, {' and '.join(cases['dtypes'])}, {cases['shapes']} shapes, "
        f"blocks of {' and '.join(map(str, cases['blocks']))}.\n"
        f"- {of['decode_queries']:,} decode queries: {of['wrong_tables']} tables with other tokens "
        f"than the method reads; of {of['choices']:,} choices of blocks, "
        f"{of['choices_that_differ']} are others than float64's. Outputs are off by up to "
        f"{found['error']:.2f} of what is allowed, twice the error of plain torch in the same "
        f"dtype over the same tokens; of tokens read in full, {found['error_in_full']:.2f}.\n"
        f"- {of['steps_that_may_not_wait']:,} steps of the layer (all that read chosen or listed "
        f"blocks but the first two of each case; their plans are made before) were run so that "
        f"torch raises where the host waits for the device: it did in {found['waited']} cases.\n"
        f"- {_place(found['place'])}; blocks were compared by "
        f"{' and '.join(found['compared_by'])}.\n"
    )


def _checked(lines: Sequence[str]) -> dict[str, Any]:
    *every, last = map(json.loads, lines)
    # Those that broke off say why, and nothing else.
    cases = [one for one in every if "reason" not in one]
    sums = ("decode_queries", "wrong_tables", "choices", "choices_that_differ",
            "steps_that_may_not_wait")  # fmt: skip
    return {
        "place": {name: last[name] for name in ("device", "kernel", "torch", "triton", "vllm")},
        "cases": {
            "all": last["cases"],
            "failed": last["failed"],
            "policies": len({one["policy"] for one in every}),
            "dtypes": list(dict.fromkeys(one["dtype"] for one in every)),
            "shapes": len({str(one["heads"]) for one in every}),
            "blocks": sorted({one["block"] for one in every}),
        },
        "sums": {name: sum(one[name] for one in cases) for name in sums},
        "error": max(one["largest_error"] / one["bar"] for one in cases),
        "error_in_full": max(one["largest_error_in_full"] / one["bar_in_full"] for one in cases),
        "waited": sum(one["waited"] is not False for one in cases),
        "compared_by": sorted({one["compared_by"] for one in cases} - {None}),
    }


def taken(kind: str, text: str, before: Any) -> Any:
    """What is kept of a measurement's output, whose last line is its JSON."""
    lines = text.strip().splitlines()
    if kind == "checked":
        return _checked(lines)
    told = json.loads(lines[-1])
    if kind == "steps":
        return told
    if kind == "paged":
        shapes = {
            name: {"layers": 1, "Hq": one["Hkv"] * one["G"], "Hkv": one["Hkv"], "D": one["D"]}
            for name, one in told["shapes"].items()
        }
        return _rounded(told | {"shapes": shapes})
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


def _rounded(x: Any) -> Any:
    """With four digits of every number that is none of counting."""
    if isinstance(x, Mapping):
        return {name: _rounded(one) for name, one in x.items()}
    if isinstance(x, list):
        return [_rounded(one) for one in x]
    return float(f"{x:.4g}") if isinstance(x, float) else x


SECTIONS = {
    "steps": steps, "runtimes": runtimes, "churn": churn, "paged": paged, "checked": checked
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    return pages.of_measurements(
        __doc__, PAGE, "sparse_serving_page.py", KEPT, SECTIONS, taken, argv
    )


if __name__ == "__main__":
    sys.exit(main())
