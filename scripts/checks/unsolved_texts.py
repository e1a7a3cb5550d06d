"""Texts of full attention that count as unsolved, for a person to say whether the scorer is wrong.

    python scripts/checks/unsolved_texts.py lil-out/real/table --runs 50 --seed 0
    python scripts/checks/unsolved_texts.py STORE --json

Each with its question, the accepted answer, what answer was found and by which rule, what `stated`
finds where another scorer judges, whether the accepted number stands anywhere in the text, and the
text's end. The runs are drawn at random; the same seed draws the same ones. Nothing is decoded; the
store is only read, but for its cache.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue, check_int
from experiments.grid import answers, scoring
from experiments.store.samples.sample import Sample
from experiments.store.study import Study

#: Characters of a text's end.
SHOWN = 400

Row = dict[str, Any]


def unsolved(study: Study) -> tuple[list[Sample], int]:
    """Full attention's runs without penalty that are judged and not right, and how many are judged.

    Args:
        study: whose runs are read.

    Raises:
        InvalidValue: none of them can be judged.
    """
    full = [
        one
        for one in study.samples([]).samples
        if one.backend == "full" and one.role != "null" and one.penalty == "none"
    ]
    judged = [one for one in full if one.correct is not None]
    if not judged:
        allowed = "one with runs of full attention that can be judged"
        raise InvalidValue("store", str(study.folder), allowed)
    return [one for one in judged if not one.correct], len(judged)


def drawn(samples: Sequence[Sample], runs: int, seed: int) -> list[Sample]:
    """So many of them at random, or all, in the order of the sweep."""
    if runs >= len(samples):
        return list(samples)
    places = random.Random(seed).sample(range(len(samples)), runs)
    return [samples[at] for at in sorted(places)]


def told(study: Study, samples: Sequence[Sample]) -> Iterator[Row]:
    """What a person reads of each run.

    Args:
        study: whose runs they are.
        samples: from `unsolved`.
    """
    problems = {
        record.id: run.problem
        for run in study.runs()
        if run.cell.is_full and (record := study.served(run)) is not None
    }
    for sample in samples:
        record = study.store.get(sample.record or "")
        assert record is not None
        trace = record.trace()
        assert sample.tokens is not None
        whole = sample.tokens >= trace.tokens
        pieces = trace.text_pieces if whole else trace.pieces[: sample.tokens]
        text = b"".join(pieces).decode(errors="replace")
        problem = problems[record.id]
        ended = sample.status == "ok"
        stated = scoring.judged(text, problem.gold, "stated", ended=ended)
        golds = (problem.gold,) if isinstance(problem.gold, str) else problem.gold or ()
        wanted = frozenset(value for gold in golds for value in answers.values(gold))
        numbers = re.findall(r"\d[\d,]*(?:\.\d+)?", text)
        yield {
            "item": sample.item_id,
            "sample": sample.sample_index,
            "scorer": problem.scorer,
            "question": trace.prompt_bytes.decode(errors="replace"),
            "gold": sample.gold,
            "answer": sample.answer,
            "rule": sample.rule,
            "stated": stated.answer,
            "stated_rule": stated.rule,
            "stated_right": stated.correct,
            "gold_in_text": any(not wanted.isdisjoint(answers.values(one)) for one in numbers),
            "ended": ended,
            "tokens": sample.tokens,
            "end": text[-SHOWN:],
        }


def lines(row: Row, at: int) -> Iterator[str]:
    """One run, as text."""
    how = "ended by itself" if row["ended"] else "cut"
    yield f"=== {at}: problem {row['item']}, {row['tokens']} tokens, {how}"
    yield row["question"].strip()
    yield f"--- gold: {row['gold']}"
    found = "none" if row["answer"] is None else f"{row['answer']!r} by {row['rule']}"
    yield f"--- found by {row['scorer']}: {found}"
    if row["scorer"] != "stated":
        other = "none" if row["stated"] is None else f"{row['stated']!r} by {row['stated_rule']}"
        yield f"--- found by stated: {other}{', RIGHT' if row['stated_right'] else ''}"
    yield f"--- the gold number stands in the text: {'yes' if row['gold_in_text'] else 'no'}"
    yield f"...{row['end']}"
    yield ""


def main(argv: Sequence[str] | None = None) -> int:
    """The texts; 2 where the store cannot be read so."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path, help="folder of a sweep")
    parser.add_argument("--runs", type=int, default=50, help="how many at most (50)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args(argv)
    try:
        check_int("runs", args.runs, 1)
        study = Study.open(args.store)
        wrong, of = unsolved(study)
        rows = list(told(study, drawn(wrong, args.runs, args.seed)))
    except InvalidValue as error:
        print(f"unsolved_texts: {error}", file=sys.stderr)
        return 2
    for notice in dict.fromkeys(study.said):
        print(f"unsolved_texts: {notice}", file=sys.stderr)
    facts = {"store": study.folder.name, "judged": of, "unsolved": len(wrong), "seed": args.seed}
    if args.json:
        print(json.dumps({**facts, "runs": rows}))
        return 0
    for at, row in enumerate(rows, start=1):
        print("\n".join(lines(row, at)))
    print(f"{len(rows)} of {len(wrong)} unsolved runs, of {of} that are judged")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
