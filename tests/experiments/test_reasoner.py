"""The reasoner's language: problems are solvable and disjoint, chains compute what they say."""

from __future__ import annotations

import functools
import random
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from reasoner_training import chain_words
from reasoner_training.tokenizer import build_tokenizer, pieces, richer_vocabulary, vocabulary
from reasoner_training.traces import NO_FAULTS, TraceConfig, write_trace

from experiments.reasoner import LEVELS, SPLITS, problem
from experiments.reasoner.problems import RECIPES, Problem

levels = st.sampled_from(list(RECIPES))
indices = st.integers(0, 10**6)


def solve(drawn: Problem) -> tuple[int, int]:
    """Oracle: the goal's value and the computations it takes, by recursion over the facts."""
    memo: dict[str, int] = {}
    computed = 0

    def value(name: str) -> int:
        nonlocal computed
        if name not in memo:
            fact = drawn.fact_of[name]
            parts = [value(operand) for operand in fact.operands]
            if fact.kind == "given":
                memo[name] = fact.number
            else:
                computed += 1
                memo[name] = {
                    "plus": lambda: parts[0] + fact.number,
                    "minus": lambda: parts[0] - fact.number,
                    "twice": lambda: 2 * parts[0],
                    "sum": lambda: parts[0] + parts[1],
                    "diff": lambda: parts[0] - parts[1],
                }[fact.kind]()
        return memo[name]

    return value(drawn.goal), computed


@settings(max_examples=60, deadline=None)
@given(levels, st.sampled_from(SPLITS), indices)
def test_answer_and_steps(level: str, split: str, index: int) -> None:
    drawn = problem(level, split, index)
    answer, steps = solve(drawn)
    assert drawn.answer == str(answer)
    assert drawn.steps == steps
    low, high = RECIPES[level].steps
    assert low <= steps <= high
    assert drawn == problem(level, split, index)
    for fact in drawn.facts:
        for sentence in fact.tellings:
            assert drawn.prompt.count(sentence) == 1
            stated = [int(n) for n in re.findall(r"\d+", sentence)]
            assert stated == ([] if fact.number is None else [fact.number])
        places = [drawn.prompt.index(sentence) for sentence in fact.tellings]
        assert places == sorted(set(places))


def test_splits_share_no_problem() -> None:
    texts = {
        split: {problem(level, split, i).prompt for level in LEVELS for i in range(20)}
        for split in SPLITS
    }
    for split in SPLITS:
        for other in SPLITS:
            assert split == other or not texts[split] & texts[other]


@settings(max_examples=100, deadline=None)
@given(levels, indices, st.integers(0, 10**6))
def test_faultless_chain_reaches_the_answer(level: str, index: int, seed: int) -> None:
    drawn = problem(level, "train", index)
    _, chain = write_trace(drawn, random.Random(seed), NO_FAULTS)
    assert chain.text.endswith(f"The answer is \\boxed{{{drawn.answer}}}.{chain_words.EOS}")
    assert "Wait" not in chain.text
    assert all(weight > 0 for _, weight in chain.parts)
    # Every stated sum is right.
    for a, sign, b, after in re.findall(
        r"is (\d+), (plus|minus) (?:\w+ is )?(\d+)[^?\n]*? (\d+)[.,]", chain.text
    ):
        assert int(after) == int(a) + int(b) * (1 if sign == "plus" else -1)


@settings(max_examples=60, deadline=None)
@given(levels, indices, st.integers(0, 10**6))
def test_vocabulary_covers_the_language(level: str, index: int, seed: int) -> None:
    tokenizer = _tokenizer()
    prompt, chain = write_trace(
        problem(level, "train", index), random.Random(seed), TraceConfig(faulty=1, reread=0.2)
    )
    text = prompt + chain.text
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.unk_token_id not in ids
    known = richer_vocabulary()
    assert [known[i] for i in ids] == pieces(text)
    assert tokenizer.decode(ids) == text == "".join(known[i] for i in ids)
    assert known[: len(vocabulary())] == vocabulary()
    if level in LEVELS:
        assert max(ids) < len(vocabulary())


@functools.cache
def _tokenizer() -> Any:
    return build_tokenizer(richer_vocabulary())
