"""Lossless decoding beside full attention at long contexts: drafts kept, keys and seconds a token.

    python scripts/bench/lossless_speed.py qwen-coder-0.5b     # brought by scripts/real_models
    python scripts/bench/lossless_speed.py experiments/reasoner/checkpoint --contexts 500

A model goes on with the source of a module of Python's standard library, cut at so many tokens; the
text that it writes has to be full attention's, else the row says where they part (in float32 sums
differ in their last digits). Full attention and backends take turns; medians count. Seconds are
those of decoding, not of reading the context; keys are what drafts and checks read, over
full attention's for the same tokens.
"""

from __future__ import annotations

import argparse as source_of_context
import inspect
import platform
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gguf_speed import brought
from programs import Column, conditions, counts, measuring, names, one_message, parser, printed
from programs import table as made_table

import lil
from attention.errors import InvalidValue
from experiments import bench
from experiments.grid import models
from experiments.grid.models import LoadedModel, use_threads

#: Tokens at most before the first turn, which is not counted and so need not read a long context.
WARMING = 2000
COLUMNS = (
    Column("context", "context", ","),
    Column("", "backend", words=True),
    Column("drafts", "drafts"),
    Column("tokens", "tokens", ","),
    Column("same", "same", ","),
    Column("kept", "kept", ".1%"),
    Column("keys", "keys", ".2f"),
    Column("ms a token", "ms_a_token", ".1f"),
    Column("seconds", "seconds", ".2f"),
)


def measured(
    model: str,
    contexts: Sequence[int] = (2000, 16000),
    backends: Sequence[str] = ("quest",),
    budget: int = 1024,
    drafts: Sequence[int] = (4, 8),
    tokens: int = 64,
    repeats: int = 3,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Full attention, and every backend with every number of drafts, in turns.

    Args:
        model: a GGUF file, a folder, or a name of `scripts/real_models`.
        contexts: tokens before the first generated one.
        backends: that draft.
        budget: tokens that a draft may read.
        drafts: tokens before a check.
        tokens: generated.
        repeats: timed runs of each.
        progress: told what is run next.

    Raises:
        InvalidValue: more tokens than the source has or the model has positions for.
    """
    progress("loading")
    file = model if Path(model).exists() else brought(model)
    loaded = models.load(models.find(file), "float32", "cpu")
    rows = [
        row
        for context in contexts
        for row in at_context(loaded, context, backends, budget, drafts, tokens, repeats, progress)
    ]
    return {
        "rows": rows, "model": Path(file).stem, "budget": budget, "repeats": repeats,
        "source": f"{source_of_context.__name__} of Python {platform.python_version()}",
        **bench.conditions(), "device": bench.device_name("cpu"),
    }  # fmt: skip


def at_context(
    loaded: LoadedModel,
    context: int,
    backends: Sequence[str],
    budget: int,
    drafts: Sequence[int],
    tokens: int,
    repeats: int,
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Rows of one context."""
    ids = loaded.tokenizer(inspect.getsource(source_of_context))["input_ids"]
    if not 0 < context <= len(ids):
        raise InvalidValue("contexts", context, f"1 to {len(ids)}, the tokens of the source")
    room = loaded.model.config.get_text_config().max_position_embeddings
    if context + tokens > room:
        raise InvalidValue(
            "contexts", context, f"at most {room - tokens}, by the model's positions"
        )
    ways: dict[tuple[str, int | None], dict[str, Any]] = {("full", None): {}}
    for name in backends:
        for count in drafts:
            ways[name, count] = {"backend": bench.sparse(name, budget), "speculate": count}
    found: dict[tuple[str, int | None], list[lil.Trace]] = defaultdict(list)
    for turn in range(repeats + 1):
        seen = context if turn else min(context, WARMING)
        for way, options in ways.items():
            progress(f"{way[0]}, {context} tokens, turn {turn}")
            (trace,) = lil.decode(
                loaded.model, loaded.tokenizer, [lil.Request(ids[:seen])],
                max_new_tokens=tokens if turn else 4, token_bytes=loaded.token_bytes, **options,
            )  # fmt: skip
            if turn:
                found[way].append(trace)
    whole = found["full", None]
    base = statistics.median(map(seconds_a_token, whole))
    rows = []
    for (name, count), traces in found.items():
        trace, full = traces[0], whole[0]
        same = next((at for at, (a, b) in enumerate(zip(trace.new_ids, full.new_ids, strict=False))
                     if a != b), min(trace.tokens, full.tokens))  # fmt: skip
        taken = statistics.median(map(seconds_a_token, traces))
        of = trace.speculation or {}
        looked = of.get("accepted", 0) + of.get("rejected", 0)
        keys = [one.checks[-1].keys_read / (one.tokens - 1) for one in (trace, full)]
        rows.append({
            "context": context, "backend": name if count is None else f"{name} {budget}",
            "drafts": count, "tokens": trace.tokens, "same": same,
            "kept": of["accepted"] / looked if looked else None,
            "keys": keys[0] / keys[1], "ms_a_token": 1000 * taken, "seconds": taken / base,
        })  # fmt: skip
    return rows


def seconds_a_token(trace: lil.Trace) -> float:
    """Of decoding; the first token comes with the context."""
    taken = trace.checks[-1].seconds
    assert taken is not None
    return taken / (trace.tokens - 1)


@one_message
def main(argv: Sequence[str] | None = None) -> int:
    flags = parser(__doc__)
    flags.add_argument("model")
    flags.add_argument("--contexts", type=counts, default=[2000, 16000])
    flags.add_argument("--backends", type=names, default=["quest"])
    flags.add_argument("--budget", type=int, default=1024)
    flags.add_argument("--drafts", type=counts, default=[4, 8])
    flags.add_argument("--tokens", type=int, default=64)
    flags.add_argument("--repeats", type=int, default=3)
    flags.add_argument("--threads", type=int)
    args = flags.parse_args(argv)
    with measuring() as progress:
        use_threads(args.threads)
        found = measured(
            args.model, args.contexts, args.backends, args.budget, args.drafts, args.tokens,
            args.repeats, progress,
        )  # fmt: skip
    shown = made_table("lossless decoding, float32", COLUMNS, found["rows"])
    return printed(found, args.json, shown, conditions(found))


if __name__ == "__main__":
    sys.exit(main())
