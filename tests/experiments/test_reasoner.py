"""The reasoner's language: problems are solvable and disjoint, chains compute what they say."""

from __future__ import annotations

import functools
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reasoner_training import chain_words
from reasoner_training.tokenizer import build_tokenizer, pieces, richer_vocabulary, vocabulary
from reasoner_training.traces import NO_FAULTS, TraceConfig, write_trace

from attention.errors import InvalidValue
from experiments.reasoner import LEVELS, SPLITS, problem, words
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


@settings(max_examples=150, deadline=None)
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
        split: {problem(level, split, i).prompt for level in LEVELS for i in range(60)}
        for split in SPLITS
    }
    for split in SPLITS:
        for other in SPLITS:
            assert split == other or not texts[split] & texts[other]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("esay", "test", 0), "level"),
        (("easy", "dev", 0), "split"),
        (("easy", "test", -1), "index"),
    ],
)
def test_bad_arguments(arguments: tuple[str, str, int], field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        problem(*arguments)
    assert caught.value.field == field


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


@settings(max_examples=100, deadline=None)
@given(levels, indices, st.integers(0, 10**6))
def test_mistakes_are_untrained_and_mended(level: str, index: int, seed: int) -> None:
    drawn = problem(level, "train", index)
    config = TraceConfig(faulty=1, missing=0, stubborn=0, reread=0)
    _, chain = write_trace(drawn, random.Random(seed), config)
    assert chain.faults
    untrained = [text for text, weight in chain.parts if weight == 0]
    assert [t for t in untrained if t != " guess"]
    assert len(untrained) >= len(chain.faults)
    assert chain.text.endswith(f"\\boxed{{{drawn.answer}}}.{chain_words.EOS}")
    assert "Wait" in chain.text or "guess" in chain.text


def test_missing_fact_ends_in_giving_up() -> None:
    drawn = problem("easy", "train", 3)
    prompt, chain = write_trace(drawn, random.Random(0), TraceConfig(missing=1))
    assert len(prompt) < len(drawn.prompt)
    assert chain.gave_up
    assert chain.text.endswith(
        f"{chain_words.END_THINK}\n\n{chain_words.NOT_KNOWN}{chain_words.EOS}"
    )


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


def test_tokens_the_language_promises() -> None:
    assert 300 <= len(vocabulary()) <= 2000
    assert len(set(vocabulary())) == len(vocabulary())
    for token in ("\n\n", chain_words.THINK, chain_words.END_THINK, chain_words.BOXED, " 42", "42"):
        assert token in vocabulary()
    assert set(pieces(chain_words.CUE)) <= set(vocabulary())


def test_at_least_six_forms_of_everything() -> None:
    groups = [
        *words.FACTS.values(),
        words.QUESTIONS,
        chain_words.ASK,
        chain_words.OPEN,
        chain_words.BACK,
    ]
    groups += [
        chain_words.GIVEN,
        chain_words.TAKE,
        chain_words.MAKES,
        chain_words.VERDICTS,
        chain_words.WAIT,
        chain_words.CHECK,
    ]
    assert all(len(set(group)) >= 6 for group in groups)


@functools.cache
def _tokenizer() -> Any:
    return build_tokenizer(richer_vocabulary())


@settings(max_examples=100, deadline=None)
@given(levels, indices, st.integers(0, 10**6))
def test_what_is_forgotten_is_derived_again(level: str, index: int, seed: int) -> None:
    drawn = problem(level, "train", index)
    config = TraceConfig(missing=0, stubborn=0, forget=0.1)
    _, chain = write_trace(drawn, random.Random(seed), config)
    assert chain.text.endswith(f"\\boxed{{{drawn.answer}}}.{chain_words.EOS}")
    assert (
        sum(chain.text.count(f"{phrase}\n\n") for phrase in chain_words.RECHECK)
        < config.most_passes
    )
    # A settled name that is "not known" gets a value once more.
    settled: set[str] = set()
    lost: set[str] = set()
    event = re.compile(r"(\w+) (?:is|was) (not known|\d+)")
    for name, value in event.findall(chain.text.partition(chain_words.END_THINK)[0]):
        if value != "not known":
            settled.add(name)
            lost.discard(name)
        elif name in settled:
            lost.add(name)
    assert not lost
    untrained = [text for text, weight in chain.parts if weight == 0]
    assert chain.text.count("Again,") == 0 or " not" in untrained


def test_without_checks_every_answer_is_right() -> None:
    config = TraceConfig(faulty=0, missing=0, stubborn=0, forget=0.1, checks=False)
    for index in range(40):
        drawn = problem("medium", "train", index)
        _, chain = write_trace(drawn, random.Random(index), config)
        assert f"{chain_words.BOXED}{drawn.answer}}}" in chain.text
