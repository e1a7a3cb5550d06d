"""Readings of the reasoner's chains, beside what the generator of its training traces wrote."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from reasoner_training import tokenizer, traces
from reasoner_training.traces import NO_FAULTS, TraceConfig

from experiments.reasoner import LEVELS, RECIPES, words
from experiments.reasoner.judge import LOOP, ChainReading, pieces, read, values
from experiments.reasoner.problems import Problem, problem
from experiments.store.samples.repetition import exact
from experiments.store.study import Study

SMALL = Path(__file__).parent / "data" / "small"
levels = st.sampled_from(list(RECIPES))
indices = st.integers(0, 10**4)
#: Everything that can go wrong, more often than in training.
ALL = TraceConfig(faulty=0.9, fix_fault=0.2, reread=0.1, missing=0.1, stubborn=0.1, forget=0.05)


@dataclass
class Log:
    """What a chain's writer did, in its own words. Places are tokens."""

    settled: list[tuple[str, int]] = field(default_factory=list)
    mended: Counter[tuple[bool, bool]] = field(default_factory=Counter)  # right before, after
    forgotten: int = 0
    disagreements: int = 0
    goal: list[tuple[int, int]] = field(default_factory=list)  # values stated and where
    raised: list[tuple[int, int]] = field(default_factory=list)  # right values, and line ends


class Writer(traces._Writer):
    """The writer of training traces, which keeps account."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.log = Log()
        self.true = values_by_hand(self.problem)
        self.believed: dict[str, int] = {}  # what was settled last, remembered or not

    @property
    def at(self) -> int:
        return len(tokenizer.pieces(self.chain.text))

    def number(self, value: int, weight: float = 1.0) -> None:
        super().number(value, weight)
        if self.chain.parts[-2][0].endswith(f" {self.problem.goal} is"):
            self.log.goal.append((value, self.at))

    def forgets(self, name: str) -> bool:
        gone = super().forgets(name)
        self.log.forgotten += gone
        return gone

    def settle(self, name: str, *args: object, **others: object) -> None:
        super().settle(name, *args, **others)  # type: ignore[arg-type]
        self.log.settled.append((name, self.known[name]))
        self.believe(name)

    def check(self, name: str) -> bool:
        before, settled = self.known.get(name), len(self.log.settled)
        agrees = super().check(name)
        again = any(one == name for one, _ in self.log.settled[settled:])
        if not agrees and not again:
            self.log.disagreements += 1
            right = self.true[name]
            assert before is not None
            self.log.mended[before == right, self.known[name] == right] += 1
        elif not again and self.chain.parts[-3][0] == f" Again, {name} is":
            self.log.settled.append((name, self.known[name]))
        self.believe(name)
        return agrees

    def believe(self, name: str) -> None:
        self.believed[name] = self.known[name]
        right = sum(self.true[one] == value for one, value in self.believed.items())
        self.log.raised.append((right, self.at))


def values_by_hand(drawn: Problem) -> dict[str, int]:
    """Oracle: every value, by going round until nothing is left to find."""
    found: dict[str, int] = {}
    while len(found) < len(drawn.facts):
        for fact in drawn.facts:
            if all(operand in found for operand in fact.operands):
                a, b = ([found[one] for one in fact.operands] + [0, 0])[:2]
                n = fact.number or 0
                found[fact.name] = {
                    "given": n,
                    "plus": a + n,
                    "minus": a - n,
                    "twice": a + a,
                    "sum": a + b,
                    "diff": a - b,
                }[fact.kind]
    return found


def write(drawn: Problem, config: TraceConfig, seed: int) -> Writer:
    """A chain, as `write_trace` makes one, and its account."""
    rng = random.Random(seed)
    hidden = None
    if drawn.level != "hard" and rng.random() < config.missing:
        hidden = rng.choice(sorted(traces._needed(drawn)))
    while True:
        writer = Writer(drawn, rng, config, hidden)
        try:
            writer.run()
        except traces._DrawAgainError:
            continue
        return writer


@settings(max_examples=60)
@given(levels, indices)
def test_true_values(level: str, index: int) -> None:
    drawn = problem(level, "train", index)
    assert values(drawn) == values_by_hand(drawn)


@settings(max_examples=60)
@given(levels, indices, st.integers(0, 99))
def test_a_chain_without_faults(level: str, index: int, seed: int) -> None:
    drawn = problem(level, "train", index)
    writer = write(drawn, NO_FAULTS, seed)
    found = read(drawn, writer.chain.text)
    assert all(line.whole and not line.misread and not line.disagrees for line in found.lines)
    kinds = found.by_kind()
    assert sum(kinds.values()) == found.tokens == writer.at
    assert {kind for kind, n in kinds.items() if n} == {"asked", "derived", "checked", "answer"}
    assert found.solved
    assert not found.gave_up
    assert found.wrong == found.forgotten == found.wasted == 0
    assert {one.right for one in found.statements} <= {True, None}
    checks = [line for line in found.lines if line.kind == "checked" and line.name]
    assert [line.name for line in checks] == writer.order
    first = writer.log.goal[0][1]
    assert (found.first_stated, found.first_stated_at) == (int(drawn.answer), first)
    assert found.first_right_at == first
    assert found.best == len(writer.order)
    assert first < found.best_at < checks[0].end


@settings(max_examples=120)
@given(levels, indices, st.integers(0, 10**6))
@example("easy", 3, 1)
def test_what_was_injected_is_found(level: str, index: int, seed: int) -> None:
    drawn = problem(level, "train", index)
    writer = write(drawn, ALL, seed)
    chain, log = writer.chain, writer.log
    found = read(drawn, chain.text)
    assert all(line.whole for line in found.lines)
    assert found.by_kind()["unknown"] == 0
    assert found.tokens == writer.at
    # What was settled, in order, and what a "Wait" made of it.
    said = [(one.name, one.value) for one in found.statements if one.kind == "settled"]
    assert said == log.settled
    assert found.right_to_wrong == log.mended[True, False]
    assert found.wrong_to_right == log.mended[False, True]
    assert found.wrong_to_wrong == log.mended[False, False]
    assert sum(line.disagrees for line in found.lines) == log.disagreements
    assert sum(line.kind == "mended" for line in found.lines) == log.disagreements
    # Faults by kind.
    faults = Counter(chain.faults)
    assert sum(line.misread for line in found.lines) == faults["number"]
    assert sum(one.kind == "guessed" for one in found.statements) == faults["guess"]
    assert found.forgotten == log.forgotten
    unseen = sum(chain.text.count(f"{one}\n") for one in words.UNSEEN)
    again = sum(chain.text.count(f"\n{one}\n") for one in words.RESTART)
    assert sum(line.kind == "lost" for line in found.lines) == unseen + again
    # The goal and the answer.
    assert found.gave_up == chain.gave_up
    assert found.answer == (None if chain.gave_up else str(writer.known[drawn.goal]))
    right = [at for value, at in log.goal if value == writer.true[drawn.goal]]
    assert found.first_right_at == (right[0] if right else None)
    first, last = (log.goal[0], log.goal[-1]) if log.goal else ((None, None),) * 2
    assert (found.first_stated, found.first_stated_at) == first
    assert (found.last_stated, found.last_stated_at) == last
    # The most right values that were known, and where they first were.
    most = max((right for right, _ in log.raised), default=0)
    assert found.best == most
    assert found.best_at == (0 if not most else next(at for n, at in log.raised if n == most))
    solved = found.answer == drawn.answer
    assert found.wasted == (0 if solved else found.tokens - found.best_at)


def test_all_faults_were_injected() -> None:
    """The property above sees each kind, mended or not."""
    kinds: Counter[str] = Counter()
    for seed in range(60):
        writer = write(problem(LEVELS[seed % 2], "train", seed), ALL, seed)
        kinds.update(writer.chain.faults)
        kinds.update(str(change) for change in writer.log.mended.elements())
        kinds["gave up"] += writer.chain.gave_up
        kinds["forgot"] += writer.log.forgotten
    wanted = {"computed", "operand", "number", "guess", "constant", "fix", "gave up", "forgot"}
    assert wanted | {"(True, False)", "(False, True)", "(False, False)"} <= {*(+kinds)}


@settings(max_examples=40)
@given(levels, indices, st.data())
def test_a_text_that_is_cut_off(level: str, index: int, data: st.DataObject) -> None:
    """It says what the whole one had said by then."""
    drawn = problem(level, "train", index)
    tokens = [one.encode() for one in pieces(write(drawn, ALL, index).chain.text)]
    whole = read(drawn, tokens)
    at = data.draw(st.integers(0, len(tokens)))
    cut = read(drawn, tokens[:at])
    assert cut.tokens == at == sum(cut.by_kind().values())

    def said(reading: ChainReading) -> list[tuple[object, ...]]:
        stated = [one for one in reading.statements if one.value is not None and one.at <= at]
        return [(one.kind, one.name, one.value, one.at) for one in stated]

    assert said(cut) == said(whole)
    assert cut.last_stated == whole.stated(at)
    assert all(line.whole or line.kind == "unknown" for line in cut.lines)
    assert sum(line.misread for line in cut.lines) <= sum(line.misread for line in whole.lines)
    before = max(0, len(cut.lines) - 1)
    assert cut.lines[:before] == whole.lines[:before]


@settings(max_examples=100)
@given(levels, indices, st.data())
def test_any_text_is_read(level: str, index: int, data: st.DataObject) -> None:
    """Words of the language in any order, and anything at all."""
    drawn = problem(level, "train", index)
    known = st.sampled_from([*tokenizer.vocabulary(), "\n\n", f" {drawn.goal} is 5", "", "²", "٣"])
    text = "".join(data.draw(st.lists(st.one_of(known, known, st.text(max_size=5)), max_size=60)))
    found = read(drawn, text)
    assert sum(found.by_kind().values()) == found.tokens == len(pieces(text))
    tokens = data.draw(st.lists(st.binary(max_size=4), max_size=20))
    found = read(drawn, tokens)
    assert sum(found.by_kind().values()) == found.tokens == len(tokens)


@settings(max_examples=60)
@given(indices, st.data())
def test_a_chain_with_words_changed(index: int, data: st.DataObject) -> None:
    drawn = problem("easy", "train", index)
    tokens = pieces(write(drawn, ALL, index).chain.text)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(tokens) - 1))
        tokens[at] = data.draw(st.sampled_from(tokenizer.vocabulary()))
    found = read(drawn, [one.encode() for one in tokens])
    assert sum(found.by_kind().values()) == found.tokens == len(tokens)
    assert found.best <= len(drawn.facts)
    assert 0 <= found.best_at <= found.tokens


@settings(max_examples=60)
@given(st.text())
@example("<think>\n\nThe answer is \\boxed{12}.<eos>")
def test_texts_are_split_as_the_tokenizer_does(text: str) -> None:
    assert pieces(text) == tokenizer.pieces(text)
    assume(text)
    assert "".join(pieces(text)) == text


def by_hand() -> Problem:
    """What the lines below speak of."""
    return problem("easy", "test", 3)


def kinds(text: str) -> list[str]:
    return [line.kind for line in read(by_hand(), text).lines]


def test_lines_by_hand() -> None:
    drawn = by_hand()
    assert (drawn.goal, values(drawn)["scarf"], values(drawn)["ladder"]) == ("shoe", 13, 6)
    derive = "Finally scarf, ladder is 6, plus 7. After ladder, scarf is 13.\n\n"
    assert kinds(derive * 2) == ["derived", "derived again"]
    check = "After ladder, scarf was 13? The scarf tops the ladder by 7. ladder is 6, plus 7 means"
    assert kinds(f"{check} 13, right.\n\n" * 2) == ["checked", "checked again"]
    mend = f"{check} 12, wrong. Wait, really scarf is 12.\n\n"
    assert kinds(derive + mend) == ["derived", "mended"]
    found = read(drawn, derive + mend + mend.replace("12", "13"))
    assert (found.right_to_wrong, found.wrong_to_right, found.wrong) == (1, 1, 1)
    assert found.best_at == len(pieces(derive)), "what is only got back is not new"
    assert found.wasted == 2 * len(pieces(mend))
    # A check that lacks an operand derives it and goes on.
    waits = f"{check.rpartition(' ladder is')[0]} ladder is not known.\n\n"
    goes_on = "Finally scarf, ladder is 6, plus 7 means 13, right.\n\n"
    settle = "Find ladder, given. First, ladder is 6.\n\n"
    assert kinds(waits + settle + goes_on) == ["checked", "derived", "checked"]
    lacking = "For scarf, work out ladder plus 7, ladder is not known.\n\n"
    assert kinds(lacking * 2) == ["derived", "derived again"]
    assert kinds("See shoe, that is shoe is shoe.\n\nshoe is 34.\n\n") == ["lost", "unknown"]
    assert kinds("Let me start again.\n\n</think>\n\nThe answer is not known.<eos>") == [
        "lost",
        "answer",
        "gave up",
    ]
    misquoted = "First, ladder was 6? The ladder only costs 7. right.\n\n"
    assert [line.misread for line in read(drawn, misquoted).lines] == [True]


def test_statements_by_hand() -> None:
    drawn = by_hand()
    settle = "So shoe, cake is 21, plus scarf is 13. After cake, shoe is 34.\n\n"
    asks = "After cake, shoe was 28? The shoe joins the cake with the scarf."
    found = read(drawn, settle + asks)
    assert (found.first_stated, found.last_stated) == (34, 34), "what a check asks is no statement"
    assert found.statements[-1].value == 28
    lacks = "Next cake, need scarf plus 8, scarf is not known.\n\n"
    scarf = "Finally scarf, ladder is 6, plus 7. After ladder, scarf is 13.\n\n"
    assert read(drawn, lacks + scarf).forgotten == 0
    assert read(drawn, scarf + lacks * 3).forgotten == 1
    assert read(drawn, (scarf + lacks) * 3).forgotten == 3


def test_lines_that_are_nearly_lines() -> None:
    whole = "Finally scarf, ladder is 6, plus 7. After ladder, scarf is 13."
    for broken in (
        whole.replace("scarf is", "cake is"),  # another is settled than was begun
        whole.removesuffix("."),
        whole.replace(" plus 7.", " plus 7, plus 7."),
        whole.replace(", ladder is 6", ""),
        whole.replace("6", "6 6"),
        f"{whole} {whole}",
    ):
        assert kinds(f"{whole}\n\n{broken}\n\n{whole}\n\n") == ["derived", "lost", "derived again"]


def test_a_loop_is_a_kind_of_its_own() -> None:
    drawn = by_hand()
    line = "Find ladder, given. First, ladder is 6.\n\n"
    text = line + "Let me check.\n\n" * 5
    found = read(drawn, text)
    parts = pieces(text)
    loop = exact([*map(parts.index, parts)])
    once = len(pieces("Let me check.\n\n"))
    assert loop == 4 * once + 2, "the line before ends alike"
    counted = found.by_kind(loop)
    assert (counted["derived"], counted["checked"]) == (len(pieces(line)), once - 2)
    assert (counted["checked again"], counted[LOOP]) == (0, loop)
    assert sum(counted.values()) == found.tokens
    assert found.wasted == 5 * once


def test_the_last_box_is_the_answer() -> None:
    drawn = by_hand()
    assert read(drawn, "\\boxed{3} \\boxed{34}").solved
    assert read(drawn, "\\boxed{34} \\boxed{3").solved, "a box that is cut off is none"
    assert read(drawn, "\\boxed{34} \\boxed{}").answer == ""
    assert read(drawn, "no box").answer is None


def test_a_small_store(tmp_path: Path) -> None:
    """Its traces are solved where the scorer says so, and none under full attention is unclear."""
    study = Study.open(Path(shutil.copytree(SMALL, tmp_path / "small")))
    full = 0
    for sample in study.samples([], texts=False).samples:
        record = study.store.get(sample.record or "")
        assert record is not None
        level, split, index = sample.item_id.split("/")
        found = read(problem(level, split, int(index)), record.trace().pieces[: sample.tokens])
        assert found.solved is sample.correct
        assert found.tokens == sample.tokens
        if (sample.backend, sample.penalty) == ("full", "none"):
            full += 1
            assert found.by_kind()["unknown"] == found.by_kind()["lost"] == 0
            assert found.best > 0
    assert full
