"""Write the tables of docs/results/gpu.md from docs/gpu.json, what programs printed on a GPU.

python scripts/pages/gpu_page.py
python scripts/pages/gpu_page.py --check    # exit code 1 if the page differs
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pages

ROOT = Path(__file__).parents[2]
PAGE, KEPT = ROOT / "docs" / "results" / "gpu.md", ROOT / "docs" / "gpu.json"
Found = Mapping[str, Any]
#: Among rows of transformers' own attention, which is nobody's sparse attention either.
DENSE = ("full", "transformers")


def checked(found: Found) -> Iterator[str]:
    """What the engines give, beside the oracle in float64."""
    yield "## What is right\n"
    heads = ("engine", "operation", "value", "dtype", "cases", "largest difference", "allowed")
    rows = [
        (f"`{one['engine']}`", one["operation"], one["value"], one["dtype"], str(one["cases"]),
         f"{one['difference']:.1e}", f"{one['allowed']:.0e}")
        for one in found["oracle"]
    ]  # fmt: skip
    yield pages.table(heads, rows, left=4)
    wrong = sum(one["difference"] > one["allowed"] for one in found["oracle"])
    tests, penalty = found["tests"], found["penalty_rows"]
    yield f"- Beyond what is allowed: {wrong} of {len(rows)} lines."
    same = "; ".join(
        f"{one['dtype']} {one['same']:,} of {one['tokens']:,} tokens in {one['cases']} decodes"
        for one in found["graph_tokens"]
    )
    yield f"- A captured step chooses what the model itself does: {same}."
    yield (
        f"- Tests of the engines, on {tests['measured']} with torch {tests['torch']}: "
        f"{tests['passed']} pass, {tests['failed']} fail, {tests['skipped']} are not for this "
        f"device."
    )
    yield (
        f"- The LZ penalty's kernel, bit for bit beside torch on the GPU: {penalty['rows']:,} "
        f"rows of scores, {penalty['scores_that_differ']} scores in them differ.\n"
    )


def captured(found: Found) -> Iterator[str]:
    """A model's step as CUDA graphs."""
    given = found["graphed"]
    rows = given["rows"]
    yield "## A step of a whole model, captured\n"
    heads = ("backend", "batch", "as it is, ms", "captured, ms", "times faster", "full / it")
    full = {row["batch"]: row["graphs_ms"] for row in rows if row["backend"] == "full"}
    yield pages.table(
        heads,
        [
            (f"`{row['backend']}`", str(row["batch"]), f"{row['eager_ms']:.1f}",
             f"{row['graphs_ms']:.1f}", f"{row['ratio']:.1f}",
             f"{full[row['batch']] / row['graphs_ms']:.2f}")
            for row in rows
        ],
    )  # fmt: skip
    least, most = (pick(row["ratio"] for row in rows) for pick in (min, max))
    same = min(row["same"] for row in rows)
    yield (
        f"Capturing makes a step {least:.1f} to {most:.1f} times faster; {same:.0%} of the tokens "
        "are the same.\n"
    )
    yield (
        f"Conditions: {given['shape']}, {given['layers']} layers, random weights, bfloat16, "
        f"{given['context']:,} tokens before, budget {given['budget']:,}, median of "
        f"{given['steps']} steps.\n"
    )


def compared(found: Found) -> Iterator[str]:
    """A layer and a model under each backend, beside full attention."""
    for name, title, told in (
        ("attention", "One layer", "8 KV heads of 128, 32 query heads, bfloat16"),
        ("model", "A step of a whole model, as it is", found["model"]["model"]),
    ):
        given = found[name]
        yield f"## {title}\n"
        full = {
            (row["batch"], row["context"]): row["ms"]
            for row in given["rows"]
            if row["backend"] == "full"
        }
        heads = ("backend", "budget", "batch", "context", "ms", "full / it")
        rows = []
        for row in given["rows"]:
            at = full[row["batch"], row["context"]]
            budget = "-" if row["budget"] is None else f"{row['budget']:,}"
            rows.append(
                (f"`{row['backend']}`", budget, str(row["batch"]), f"{row['context']:,}",
                 f"{row['ms']:.2f}", f"{at / row['ms']:.2f}")
            )  # fmt: skip
        yield pages.table(heads, rows)
        yield f"Conditions: {told}, the engine `triton`, median of {given['steps']} steps.\n"


def sentence(found: Found) -> str:
    """Where a sparse method's step is shorter than full attention's."""
    cells = won = 0
    for name, field in (("graphed", "graphs_ms"), ("attention", "ms"), ("model", "ms")):
        rows = found[name]["rows"]
        full = {
            (row["batch"], row.get("context")): row[field]
            for row in rows
            if row["backend"] == "full"
        }
        for row in rows:
            if row["backend"] not in DENSE:
                cells += 1
                won += row[field] < full[row["batch"], row.get("context")]
    layer = {
        (row["batch"], row["context"]): row["ms"]
        for row in found["attention"]["rows"]
        if row["backend"] == "sink"
    }
    return (
        f"**Sparse steps that are shorter than full attention's: {won} of {cells}.** A layer of "
        f"`sink` takes {layer[min(layer)]:.2f} ms with one row of {min(layer)[1]:,} tokens before "
        f"and {layer[max(layer)]:.2f} ms with {max(layer)[0]} of {max(layer)[1]:,}: what is read "
        "does not decide it, and where full attention's reading takes less than that, a sparse "
        "method gains nothing on this GPU.\n"
    )


def section(found: Found) -> str:
    """All of it."""
    has, gpu = found["environment"], found["environment"]["gpus"][0]
    packages = has["packages"]
    head = (
        f"{gpu['name']} ({gpu['bytes'] / 1e9:.0f} GB), torch {packages['torch']} with CUDA "
        f"{has['cuda']}, triton {packages['triton']}, transformers {packages['transformers']}, "
        f"Python {has['python']}, measured on {found['measured']}. Three of {has['cpus']} cores "
        "were the programs' own; the others decoded texts without the GPU.\n"
    )
    parts = [head, sentence(found), *checked(found), *captured(found), *compared(found)]
    return "\n".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    return pages.from_kept(__doc__, PAGE, "gpu_page.py", KEPT, section, argv)


if __name__ == "__main__":
    sys.exit(main())
