"""Worlds in which nothing differs but chance, and what the report says of them.

    python scripts/measuring/null_worlds.py FOLDER [--worlds 200] [--out found.json]

Pools of texts are decoded into FOLDER first: by the shipped reasoner at temperatures 0.6 and 1.0,
by a random model whose lengths scatter widely, and greedily under `dither`. A pool is a store of
full attention with many samples a problem, or of `dither` with many seeds. A world draws, for each
of its problems, samples for full attention, for a null and for several "methods" from one pool: any
sentence about a method is false. Worlds are measured by the report's own functions, at both caps;
printed are the share of worlds with any claim, the mean length ratio, and how often each interval
covers what is true. Then an effect is planted: a tenth of a method's texts repeated once, right
answers kept; how often it is found is the power.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.cli import main as main_of_lil
from experiments.report.measures import rows
from experiments.report.row import ReportRow
from experiments.store.samples.sample import Sample, Shorter
from experiments.store.study import Study
from lil import Trace

METHODS = 8  # in a world: claims are corrected for their number
FACTOR, SMALLER = 4, 2
PLANTED = 0.1  # of a method's texts are repeated once
SIZES = (14, 32, 100)  # problems, for the coverage of intervals


@dataclass(frozen=True)
class Text:
    """One sample of a pool and the trace that it was made of."""

    sample: Sample
    trace: Trace
    solved: bool

    @property
    def tokens(self) -> int:
        return self.trace.tokens


@dataclass(frozen=True)
class Pool:
    """Samples of each problem that are alike but for chance.

    Attributes:
        name: of the store.
        texts: what all sides of a world draw from, by problem.
        each: samples a problem in a world.
    """

    name: str
    texts: dict[str, list[Text]]
    each: int


def read(folder: Path, each: int) -> Pool:
    study = Study.open(folder)
    groups: dict[str, dict[str, list[Text]]]
    groups = {"full": defaultdict(list), "null": defaultdict(list)}
    for sample in study.samples([], texts=False).samples:
        if sample.record is None:
            raise SystemExit(f"{folder}: {sample.item_id} is not there")
        trace = study.store.get(sample.record).trace()
        item = f"{sample.dataset}/{sample.item_id}"
        # A world has one model, wherever its folder lay while the pool was decoded.
        plain = replace(sample, item_id=item, dataset="pool", model="pool", shorter=())
        # Of random words an answer is right by a coin that the text itself throws.
        coin = sum(trace.new_ids) % 2 == 0
        solved = coin if folder.name.startswith("random") else sample.correct
        kind = "null" if sample.role == "null" else "full"
        groups[kind][item].append(Text(plain, trace, bool(solved)))
    drawn = dict(groups["full"] if study.config.temperature else groups["null"])
    return Pool(folder.name, drawn, each if study.config.temperature else 1)


#: What is decoded for each pool; of the reasoner a third of the problems on each level.
POOLS = {
    "reasoner-0.6": ["--temperature", "0.6", "--samples-per-problem", "8", "--backend", "full"],
    "reasoner-1.0": ["--temperature", "1", "--samples-per-problem", "8", "--backend", "full"],
    "random-1.0": ["--temperature", "1", "--samples-per-problem", "8", "--backend", "full"],
    "dither": ["--backend", ",".join(["full", *(f"dither(seed={at})" for at in range(8))])],
}


def decoded(folder: Path, name: str, problems: int, workers: str) -> Path:
    """The store of a pool; what it lacks is decoded."""
    out, arguments = folder / name, POOLS[name]
    folder.mkdir(parents=True, exist_ok=True)
    if name.startswith("random"):
        model, questions = folder / "model", folder / "questions.jsonl"
        if not questions.exists():
            random_model(model)
            lines = ({"prompt": f"w{at % 25} w{at // 25}", "answer": "?"} for at in range(problems))
            questions.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        arguments = [*arguments, "--model", str(model), "--dataset", str(questions)]
        arguments += ["--limit", "all", "--max-new-tokens", "1000"]
    else:
        arguments = [*arguments, "--split", "test", "--limit", str(problems // 3)]
    plain = ["--null", "none", "--detector", "none", "--no-figures", "--no-page"]
    command = ["sweep", *arguments, *plain, "--workers", workers, "--out", str(out), "--json"]
    with contextlib.redirect_stdout(io.StringIO()):
        code = main_of_lil(command)
    if code:
        raise SystemExit(code)
    return out


def random_model(folder: Path) -> None:
    """A model of random weights and 31 words, one of which ends a text now and then."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<eos>", *(f"w{at}" for at in range(30))]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, "w0"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Whitespace(), decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=31, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, initializer_range=0.15, eos_token_id=0,
        bos_token_id=None, pad_token_id=0, max_position_embeddings=2048, tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def cut(text: Text, cap: int, times: int = 1) -> tuple[str, int, bool, float | None]:
    """Status, tokens, solved and keys read of a text, `times` times over, under a cap."""
    whole = text.tokens * times
    read = text.trace.cost_at(min(cap, text.tokens)).keys_read
    if read is not None and times > 1 and cap > text.tokens:
        read *= min(cap, whole) / text.tokens  # at least: later steps read more
    if whole <= cap:
        return text.sample.status, whole, text.solved, read
    return "capped", cap, False, read


def world(pool: Pool, n: int, draw: np.random.Generator, planted: bool = False) -> list[Sample]:
    """Full attention, a null and methods over n problems, each drawn anew."""
    items = list(pool.texts)
    found: list[Sample] = []
    for at in range(n):
        item = items[draw.integers(len(items))]
        some = pool.texts[item]
        full = [some[draw.integers(len(some))] for _ in range(pool.each)]
        longest = max(one.tokens for one in full)

        for index, text in enumerate(full):
            told: dict[str, Any] = {"backend": "full", "budget": None, "role": "method"}
            told |= {"item_id": f"{at}", "sample_index": index}
            found.append(capped(text, longest, 1, told))
        for which in range(METHODS + 1):
            told = (
                {"backend": f"method{which}", "budget": 64, "role": "method"}
                if which
                else {"backend": "full again", "budget": None, "role": "null"}
            )
            for index in range(pool.each):
                text = some[draw.integers(len(some))]
                times = 2 if planted and which == 1 and draw.random() < PLANTED else 1
                told |= {"item_id": f"{at}", "sample_index": index, "backend_params": ()}
                found.append(capped(text, longest, times, told))
    return found


def capped(text: Text, longest: int, times: int, told: dict[str, Any]) -> Sample:
    """A text, `times` times over, as a sample of another name under both caps."""
    status, tokens, solved, keys = cut(text, FACTOR * longest, times)
    less = Shorter(SMALLER, *cut(text, SMALLER * longest, times))
    return replace(
        text.sample, status=status, tokens=tokens, correct=solved, keys_read=keys,
        output=f"{text.sample.output} {times}", shorter=(less,), **told,
    )  # fmt: skip


def methods(found: Sequence[ReportRow]) -> Iterator[ReportRow]:
    return (row for row in found if row.is_sparse)


def said(row: ReportRow) -> set[str]:
    """Every claim of a row, at either cap."""
    return {*row.claims, *(word for cap in row.caps for word in cap.claims)}


def covered(row: ReportRow, name: str, true: float) -> bool | None:
    low, high = getattr(row, name).low, getattr(row, name).high
    if low is None and high is None:
        return None
    return (low or -math.inf) <= true + 1e-9 and true - 1e-9 <= (math.inf if high is None else high)


def measured(pool: Pool, worlds: int, problems: int) -> dict[str, Any]:
    """What the report says of worlds of a pool."""
    draw = np.random.default_rng(0)
    claims: Counter[str] = Counter()
    any_claim, logs, seen = 0, [], Counter()
    for _ in range(worlds):
        found = rows(world(pool, problems, draw), seed=0, factor=FACTOR)
        words = set().union(*(said(row) for row in methods(found)))
        claims.update(words)
        any_claim += bool(words)
        for row in methods(found):
            logs += [
                math.log(row.length_ratio.estimate),
                math.log(row.caps[0].length_ratio.estimate),
            ]
            seen["same"] += row.pairs_same
            seen["pairs"] += row.pairs
    solved = [one.solved for some in pool.texts.values() for one in some]
    lengths = [one.tokens for some in pool.texts.values() for one in some]
    scatter = [np.std([o.tokens for o in some]) / np.mean([o.tokens for o in some])
               for some in pool.texts.values()]  # fmt: skip
    return {
        "pool": pool.name,
        "problems": problems,
        "samples": pool.each,
        "worlds": worlds,
        "mean_tokens": float(np.mean(lengths)),
        "scatter": float(np.mean(scatter)),
        "solved": float(np.mean(solved)),
        "same": seen["same"] / seen["pairs"],
        "any_claim": any_claim / worlds,
        "claims": dict(claims),
        "mean_length_ratio": math.exp(float(np.mean(logs))),
    }


def coverage(pool: Pool, worlds: int) -> list[dict[str, Any]]:
    """How often intervals cover what is true, by how many problems there are."""
    shares = [np.mean([one.solved for one in some]) for some in pool.texts.values()]
    means = [np.mean([one.tokens for one in some]) for some in pool.texts.values()]
    truths = {
        "length_ratio": 1.0,
        "length_ratio_solved": 1.0,
        "keys_read_per_solved_ratio": 1.0,
        "accuracy_change": 0.0,
        "accuracy": float(np.mean(shares)),
        "mean_tokens": float(np.mean(means)),
    }
    found = []
    for n in SIZES:
        draw = np.random.default_rng(n)
        hits: dict[str, list[bool]] = defaultdict(list)
        for _ in range(worlds):
            for row in methods(rows(world(pool, n, draw), seed=0, factor=FACTOR)):
                for name, true in truths.items():
                    one = covered(row, name, true)
                    if one is not None:
                        hits[name].append(one)
        found.append({"pool": pool.name, "problems": n} | {
            name: [float(np.mean(of)), len(of)] if (of := hits[name]) else None for name in truths
        })  # fmt: skip
    return found


def power(pool: Pool, worlds: int, problems: int) -> dict[str, Any]:
    """How often the planted effect is found, and whether anything false is said beside it."""
    draw = np.random.default_rng(1)
    longer = false = 0
    logs = []
    for _ in range(worlds):
        found = list(methods(rows(world(pool, problems, draw, True), seed=0, factor=FACTOR)))
        (mine,) = [row for row in found if row.backend == "method1"]
        longer += "longer" in said(mine)
        logs.append(math.log(mine.length_ratio.estimate))
        false += any(said(row) for row in found if row is not mine)
    return {
        "pool": pool.name,
        "problems": problems,
        "found": longer / worlds,
        "length_ratio": math.exp(float(np.mean(logs))),
        "false_beside": false / worlds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="of the pools")
    parser.add_argument("--pools", default=",".join(POOLS), help="some of them")
    parser.add_argument("--workers", default="2")
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--samples", type=int, default=4, help="a problem, when sampling")
    parser.add_argument("--out", type=Path, help="write the numbers there as well")
    args = parser.parse_args()
    found: dict[str, list[Any]] = {"null": [], "coverage": [], "power": []}
    for name in args.pools.split(","):
        pool = read(decoded(args.folder, name, args.problems, args.workers), args.samples)
        found["null"].append(measured(pool, args.worlds, args.problems))
        print(json.dumps(found["null"][-1]), flush=True)
        for one in coverage(pool, max(1, args.worlds // 2)):
            found["coverage"].append(one)
            print(json.dumps(one), flush=True)
        found["power"].append(power(pool, max(1, args.worlds // 4), args.problems))
        print(json.dumps(found["power"][-1]), flush=True)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
