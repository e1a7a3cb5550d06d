"""A study made up for the tests of the page: traces whose texts, marks and partings are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.grid.identity import Configuration
from experiments.grid.plan import Plan, PlannedProblem
from experiments.grid.presets import load
from experiments.store.store import Store
from experiments.store.study import Study
from lil import Meter, Trace
from lil.trace import Cost

#: Names and texts that would do harm on a page that took them for its own.
MODEL = "</script><script>window.harmed = 1</script>"
HOSTILE = """<img src=x onerror="window['harmed'] = 2">{{traces}}"""  # no dot: no file's ending
ITEM = '"><b onfocus=alert(1)>\ud800'
POISON = "</script><script>window.harmed = 3</script><img src=x><!--<script>\u202e{{traces}}\u2028 "
SPLIT = [bytes([byte]) for byte in "🦊é".encode()] + [b"\xed\xa0\x80", b" "]  # not one whole token

_WORDS = (
    "one apple falls far from every tall tree while seven rivers carry its seed past old towns "
    "where bakers knead dough before dawn and sailors mend nets beside quiet harbours until winter"
)


def words(text: str) -> list[bytes]:
    """A token a word, with the space before it."""
    return [f" {word}".encode() for word in text.split(" ")]


def full_pieces(item: int) -> list[bytes]:
    """Prose that ends with the answer, a wrong one for problem 2; `eos` last."""
    written = words(_WORDS)
    written = written[item:] + written[:item]
    return [POISON.encode(), *SPLIT, *written, rf" \boxed{{{item + item // 2}}}".encode(), b""]


def sparse_pieces(item: int, budget: int) -> list[bytes]:
    """The same until token 10 + item, then a loop beyond the cap, or another answer."""
    whole = full_pieces(item)
    start = whole[: 10 + item]
    if budget == 32:
        return start + words("again and") * len(whole)
    return [*start, *words("a shorter way"), rf" \boxed{{{item + item % 2}}}".encode(), b""]


def trace(pieces: list[bytes], ids: dict[bytes, int], budget: int | None) -> Trace:
    """A finished trace of these tokens, with costs every 10 of them."""
    eos = not pieces[-1]
    written = pieces[:-1] if eos else pieces
    meter, curve, checks, read = Meter(), [], [], 0.0
    for at, piece in enumerate(pieces, 1):
        read += 2 * min(20 + at, budget or 10**6)
        if at <= len(written):
            meter.feed(piece)
        if at % 10 == 0 or at == len(pieces):
            curve.append((min(at, len(written)), meter.fed, meter.size()))
            checks.append(Cost(at, read, 64 * at, 0.01 * at, read / 2, None))
    return Trace(
        prompt_ids=tuple(range(20)),
        new_ids=tuple(ids.setdefault(piece, len(ids)) for piece in pieces),
        prompt_bytes=f"Question: {POISON}?".encode(),
        pieces=tuple(pieces),
        finish="eos" if eos else "length",
        evidence=None,
        curve=tuple(curve),
        checks=tuple(checks),
        keys_kept_max=40,
        keys_read_max=40,
        keys_read_mean=30.0,
        dense_layer_keys_read_mean=None,
        cache_bytes_peak=64 * len(pieces),
        prefill_sec=0.1,
        decode_sec=0.01 * len(pieces),
    )


def study(folder: Path, problems: int = 3) -> Study:
    """Two data sets, full attention and two budgets of h2o; `h2o` 32 loops until its cap."""
    config = load("demo-small", {"detectors": "guardian,budget", "max_new_tokens": 200})
    store, ids = Store(folder), dict[bytes, int]()
    cells, items = [], {}
    for backend, budget in (("full", None), ("h2o", 32), ("h2o", 64)):
        for dataset in ("easy", HOSTILE):
            table: dict[str, Any] = {"name": backend} | ({"budget": budget} if budget else {})
            cells.append(
                Configuration(MODEL, "0" * 32, dataset, table, (), {"temperature": 0.0}, "float32")
            )
            items[MODEL, dataset] = tuple(
                PlannedProblem(ITEM if item == 2 else str(item), f"{item}", str(item), "exact")
                for item in range(problems)
            )
    plan = Plan(tuple(cells), items, 1)
    manifest = {
        "models": [{"name": MODEL, "digest": "0" * 32}],
        "config": {"datasets": ["easy", HOSTILE]},
        "commit": "c0ffee",
        "arguments": ["sweep", "--model", MODEL],
    }
    made = Study(store, plan, config, manifest)
    for cell in cells:
        for item, run in enumerate(plan.runs(cell)):
            pieces = full_pieces(item) if cell.is_full else sparse_pieces(item, cell.budget or 0)
            result = trace(pieces, ids, cell.budget)
            meta = {
                "cell": cell.to_dict(),
                "item_id": run.item_id,
                "prompt": run.problem.prompt,
                "sample_index": 0,
                "status": "capped" if result.finish == "length" else "ok",
                "finish": result.finish,
                "tokens": result.tokens,
                "message": None,
                "sweep": "s",
                "batch_size": 1,
                "workers": 1,
            }
            store.append(run.id, meta, result.to_dict())
    store.close()
    return made
