"""Tables of docs/results/performance.md, a function for each part that benchmarks print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pages import table

Found = dict[str, Any]

#: Evicting backends: a step costs the same however many tokens were seen.
EVICTING = ("sink", "h2o", "tova", "snapkv", "rkv", "raas")
#: (batch, context, backend): what it is compared with, how, and the ratio aimed at.
FULL_TIMES = 8.0
EVICTING_TIMES, EVICTING_FLOOR = 25.0, 0.6
SHARE_OF_BYTES = {"quest": 0.8, "infllm": 0.6}
BATCH_SHARE = 0.6
SWEEP_TIMES = 20
#: Throughput of vLLM with a detector or the LZ penalty, as a share of that without.
SERVING = {"guardian": 0.97, "recurrence": 0.97, "cycle": 0.97} | dict.fromkeys(
    ("lz derived", "lz printed", "lz rate"), 0.98
)


def conditions(found: Found) -> str:
    """What the times depend on."""
    names = ("threads", "cpus", "machine", "torch", "transformers", "engine", "dtype", "device")
    told = [f"{name} {found[name]}" for name in names if found.get(name) not in (None, "")]
    speed = found.get("bandwidth_bytes_per_s")
    speeds = speed.values() if isinstance(speed, dict) else [] if speed is None else [speed]
    told += [f"{value / 1e9:.1f} GB/s read" for value in speeds]
    return "Conditions: " + ", ".join(told) + ".\n"


def step(found: Found, whole: bool = False) -> Iterator[str]:
    """Where the time of a step goes."""
    parts = ("model", "reading", "state", "detectors", "sampling", "statistics", "loop")
    floors = {"model": "model_floor_ms", "reading": "reading_floor_ms"}
    heads = ["backend", "threads", "batch", "ms"]
    for part in parts:
        heads += [part, "floor"] if part in floors else [part]
    heads += ["tokens/s"]
    widest = max(row["threads"] for row in found["rows"])
    rows = []
    for row in found["rows"]:
        if not whole and (row["threads"], row["batch"]) != (widest, 32):
            continue
        cells = [f"`{row['backend']}`", str(row["threads"]), str(row["batch"]), f"{row['ms']:.2f}"]
        for part in parts:
            cells += [f"{row[name]:.2f}" for name in (part, floors.get(part)) if name]
        rows.append([*cells, f"{row['tokens_per_s']:,.0f}"])
    yield table(heads, rows)
    most = max(row["bookkeeping"] for row in found["rows"] if row["batch"] == 32)
    yield (
        f"Statistics and loop (bookkeeping) take at most {most:.0%} of a step at batch 32 "
        f"(aim: 15%): {'reached' if most <= 0.15 else 'missed'}.\n"
    )
    yield conditions(found)


def compiled(found: Found, whole: bool = False) -> Iterator[str]:
    """Compiled steps of several models beside the models as they are."""
    rows, notes = [], []
    for one in found["models"]:
        batches = [row["batch"] for row in one["rows"]]
        for row in one["rows"]:
            ends = row["batch"] in (min(batches), max(batches))
            if not whole and not (ends and row["backend"] in ("full", "h2o", "quest")):
                continue
            share = row.get("of_bytes")
            rows.append(
                [
                    f"{one['model']}, {one['dtype']}",
                    f"`{row['backend']}`",
                    str(row["batch"]),
                    f"{row['eager_ms']:.2f}",
                    f"{row['compiled_ms']:.2f}",
                    _ratio(row["ratio"]),
                    "" if share is None else f"{share:.0%}",
                    f"{row['same']:.0%}",
                ]
            )
        grown = one.get("compile_bytes")
        notes.append(
            f"{one['model']}, {one['dtype']}, {one['layers']} layers: compiled in "
            f"{one['compile_s']:.0f} s, once{f', in {grown / 1e9:.1f} GB more' if grown else ''}, "
            f"and loaded in {one['load_s']:.2f} s from then on; {one['context']} tokens read, "
            f"{one['steps']} steps of each in turns, budgets of {one['budget']}. {conditions(one)}"
        )
    heads = ["model", "backend", "batch", "as it is, ms", "compiled, ms", "ratio", "bytes"]
    yield table([*heads, "same tokens"], rows, left=2)
    yield "Ratios are medians of pairs. Models but for the reasoner have random weights.\n"
    yield from notes


def gguf(found: Found, _whole: bool = False) -> Iterator[str]:
    """Models in files beside what others make of them."""
    rows, notes = [], []
    for one in found["models"]:
        for row in one["rows"]:
            rows.append(
                [
                    one["model"],
                    str(row["batch"]),
                    row["peer"],
                    row["weights"],
                    f"{row['tokens_per_s']:,.0f}",
                    *(
                        "" if row[x] is None else _ratio(row[x])
                        for x in ("times_vllm", "times_llama")
                    ),
                    "" if row["of_bound"] is None else f"{row['of_bound']:.0%}",
                ]
            )
        missing = "".join(f" {peer}: {why}." for peer, why in one["missing"].items())
        notes.append(
            f"{one['model']}: {one['tokens']} tokens of each text at most, median of "
            f"{one['repeats']}.{missing} {conditions(one)}"
        )
    heads = ["model", "batch", "", "weights", "tokens/s", "x vLLM", "x llama.cpp", "bound"]
    yield table(heads, rows, left=4)
    yield (
        "x vLLM: its faster one; x llama.cpp: with blocks of 8 bits (Q8_0), the width of int8. "
        "bound: bytes of the weights of all steps at the measured bandwidth, as a share of the "
        "seconds.\n"
    )
    yield from notes


def attention(found: Found, whole: bool = False) -> Iterator[str]:
    """One layer, beside transformers'."""
    heads = ["backend", "batch", "context", "ms", "cold", "x full", "cold", "x sdpa", "floor", "MB"]
    rows = [
        [
            f"`{row['backend']}`",
            str(row["batch"]),
            f"{row['context']:,}",
            f"{row['ms']:.2f}",
            f"{row['cold_ms']:.2f}",
            *(_ratio(row[f"faster_than_{n}"]) for n in ("full", "full_cold", "transformers")),
            f"{row['of_floor']:.0%}",
            f"{row['held_bytes'] / 1e6:,.0f}",
        ]
        for row in found["rows"]
        if whole or (row["batch"], row["context"]) in ((1, 32_768), (16, 8_192))
    ]
    yield table(heads, rows)
    yield table(["aim", "asked", "found", ""], [*_aims(found["rows"])])
    yield conditions(found)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _aims(rows: Sequence[Found]) -> Iterator[list[str]]:
    at = {(row["backend"], row["batch"], row["context"]): row for row in rows}

    def line(what: str, asked: float, got: float, unit: str = "") -> list[str]:
        said = "reached" if got >= asked else "missed"
        form = "{:.0%}" if unit == "%" else "{:.1f}"
        return [what, form.format(asked), form.format(got), said]

    full = [row for row in rows if row["backend"] == "full"]
    long = at.get(("full", 1, 32_768))
    if long is not None:
        got = long["faster_than_transformers"]
        yield line("`full` against transformers, 32,768, batch 1", FULL_TIMES, got)
    least = min(row["faster_than_transformers"] for row in full)
    yield line("`full` against transformers, anywhere", 1.0, least)
    for name in ("sink", "h2o"):
        row = at.get((name, 1, 32_768))
        if row is not None:
            where = f"`{name}`, 32,768, batch 1"
            yield line(f"{where}: times `full`", EVICTING_TIMES, row["faster_than_full"])
            yield line(f"{where}: share of its floor", EVICTING_FLOOR, row["of_floor"], "%")
    for name, share in SHARE_OF_BYTES.items():
        for batch, context, wanted in ((1, 32_768, share), (16, 8_192, BATCH_SHARE)):
            row, whole = at.get((name, batch, context)), at.get(("full", batch, context))
            if row is None or whole is None:
                continue
            bytes_ = whole["read_bytes"] / row["read_bytes"]
            what = f"`{name}`, {context:,}, batch {batch}: times `full`, of {bytes_:.1f} by bytes"
            yield line(what, wanted * bytes_, row["faster_than_full"])
            if batch == 1:
                told = f"`{name}`, {context:,}, batch 1: share of its floor"
                yield line(told, 0.5, row["of_floor"], "%")
        for context in (1024, 2048):
            row, whole = at.get((name, 16, context)), at.get(("full", 16, context))
            if row is not None and whole is not None and row["read_bytes"] <= whole["read_bytes"]:
                what = f"`{name}`, {context:,}, batch 16: times `full`"
                yield line(what, 1.0, row["faster_than_full"])


def long(found: Found, _whole: bool = False) -> Iterator[str]:
    """Evicting backends after few and after many tokens."""
    contexts = sorted({row["context"] for row in found["rows"]})
    at = {(row["backend"], row["context"]): row for row in found["rows"]}
    rows = []
    for name in EVICTING:
        if (name, contexts[0]) in at:
            first, last = (at[name, context] for context in (contexts[0], contexts[-1]))
            ratio = last["of_shortest"]
            said = "within 10%" if abs(ratio - 1) <= 0.1 else "not within 10%"
            rows.append(
                [f"`{name}`", f"{first['ms']:.3f}", f"{last['ms']:.3f}", f"{ratio:.2f}", said]
            )
    yield table(["median ms of a step", *(f"{n:,} seen" for n in contexts), "ratio", ""], rows)
    yield conditions(found)


def peers(found: Found, whole: bool = False) -> Iterator[str]:
    """Tokens a second beside others."""
    rows = []
    for row in found["rows"]:
        # What a method takes on given tokens in one process is on the page where it takes longer.
        alone = row["seconds"] is not None and row["forced"] and row["processes"] == 1
        if alone and not whole and not row["peer"].startswith("full") and row["times_full"] >= 1:
            continue
        if row["seconds"] is None:
            rows.append([row["peer"], "not run", "", "", "", "", ""])
            continue
        same = "" if row["same"] is None else f"{row['same']}/{row['prompts']}"
        ratios = (_ratio(row[f"times_{than}"]) for than in ("one", "vllm", "full"))
        cells = [f"{row['tokens']:,}", f"{row['tokens_per_s']:,.0f}", *ratios, same]
        rows.append([row["peer"], *cells])
    heads = ["", "tokens", "tokens/s", "x one", "x vLLM", "x full", "same tokens"]
    yield table(heads, rows)
    got, aims = found["reached"], found["aims"]
    rows = []
    for which, told in (("one_process", "one process"), ("processes", "several processes")):
        full = got[which]
        for name, what in (
            ("of_bound", "share of the bound"),
            ("times_vllm", "times vLLM"),
            ("times_one", "times one at a time"),
        ):
            value, asked = full[name], aims[name]
            if value is not None:
                said = "reached" if value >= asked else "missed"
                rows.append([f"`full`, {told}: {what}", f"{asked:.2f}", f"{value:.2f}", said])
    slower = got["sparse_slower_than_full"]
    said = "missed by " + ", ".join(slower) if slower else "reached"
    rows.append(["sparse backends, forced tokens: not slower than `full`", "", "", said])
    yield table(["aim", "asked", "found", ""], rows)
    for which, least in (("one process", "bound"), ("the slowest process", "shared_bound")):
        if found[least] is not None:
            yield _bound(which, found[least])
    anywhere = any(row.get("compiled") for row in found["rows"])
    how = "compiled where that is faster" if anywhere else "as it is"
    yield f"The model of the bound is {how}.\n"
    yield conditions(found)


def _bound(whose: str, least: Found) -> str:
    return (
        f"Bound of {whose}: {least['seconds']:.2f} s, of which prompts {least['prompts_s']:.2f}, "
        f"the model without attention {least['model_s']:.2f} in {least['steps']:,} steps, "
        f"{least['read_bytes'] / 1e9:.1f} GB of keys and values {least['read_s']:.2f}.\n"
    )


def model(found: Found, whole: bool = False) -> Iterator[str]:
    """A step of a whole model."""
    rows = [
        [
            f"`{row['backend']}`",
            str(row["batch"]),
            f"{row['context']:,}",
            f"{row['ms']:.0f}",
            *(_ratio(row[f"faster_than_{than}"]) for than in ("full", "transformers")),
            f"{row['attention_share']:.0%}",
            f"{row['held_bytes'] / 1e6:,.0f}",
        ]
        for row in found["rows"]
        if whole or row["context"] == max(one["context"] for one in found["rows"])
    ]
    yield table(["backend", "batch", "context", "ms", "x full", "x sdpa", "attention", "MB"], rows)
    for line in found["left_out"]:
        yield f"Left out: {line}.\n"
    yield conditions(found)


def sweep(found: Found, _whole: bool = False) -> Iterator[str]:
    """The demo's sweep against the same tokens one at a time."""
    said = "reached" if found["times_faster"] >= SWEEP_TIMES else "missed"
    alone = f"transformers one at a time, {found['transformers_threads']} thread(s)"
    rows = [
        ["this sweep", found["sweep_s"], found["sweep_tokens_per_s"]],
        [alone, found["transformers_s"], found["transformers_tokens_per_s"]],
        ["the bound", found["bound_s"], found["tokens"] / found["bound_s"]],
    ]
    yield table(["", "s", "tokens/s"], [[name, f"{s:,.0f}", f"{n:,.0f}"] for name, s, n in rows])
    yield (
        f"{found['runs']:,} runs, {found['tokens']:,} tokens ({found['reused_tokens']:,} reused), "
        f"{found['workers']} workers; sample: {found['sample']}. {found['times_faster']:.1f} times "
        f"faster (aim: {SWEEP_TIMES}): {said}. The bound is {found['bound_model_s']:,.0f} s of the "
        f"model and {found['bound_reading_s']:,.0f} of reading.\n"
    )
    yield conditions(found)


def serving(found: Found, _whole: bool = False) -> Iterator[str]:
    """Throughput of vLLM with what is put into it."""
    rows = []
    for name, one in found["throughput"].items():
        asked, shares = SERVING.get(name), [one[key] for key in ("share", "least", "most")]
        rows.append([name, *(f"{share:.3f}" for share in shares), *served(asked, one)])
    yield table(["asked for", "share", "least", "most", "aim", ""], rows)
    yield (
        f"{found['batch']} requests at once, {found['tokens']} tokens each, greedy; "
        f"{found['tokens_per_second_without']:,.0f} tokens a second without. Two engines with ours "
        f"loaded and two without, each couple in turns of {found['steps_a_turn']} steps: the share "
        "is of all together, least and most are of a couple. An aim is reached where the least "
        "reaches it, missed where the most does not.\n"
    )
    yield conditions(found)


def served(asked: float | None, one: Found) -> list[str]:
    """An aim, and what is said of it."""
    if asked is None:
        return ["", ""]
    if one["least"] >= asked:
        return [f"{asked}", "reached"]
    if one["most"] < asked:
        return [f"{asked}", "missed"]
    return [f"{asked}", f"{'above' if one['share'] >= asked else 'below'} on the whole"]
