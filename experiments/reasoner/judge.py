"""What an output of the reasoner says, line by line, and what of it is right.

The reasoner writes a formal language, so a program can read its chains: every value stated, every
check and what it changed, where the answer was first right, where nothing right was added any more.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from .lines import ChainLine, Clause, line
from .problems import Fact, Problem

#: What a line does. "lost": a fact that is not found, a new start, or a line that the language does
#: not have; "asked": the question restated; "unknown": nothing that begins a line.
LineKind = Literal[
    "asked", "derived", "derived again", "checked", "checked again", "mended", "lost", "gave up",
    "answer", "unknown",
]  # fmt: skip
LINE_KINDS: tuple[LineKind, ...] = LineKind.__args__  # type: ignore[attr-defined]
LOOP = "loop"

#: How a value is stated: settled by a derivation, mended by a check ("Wait"), recalled as an
#: operand or for the question, recalled to be checked ("was 5?"), computed again, guessed.
StatementKind = Literal["settled", "mended", "recalled", "doubted", "computed", "guessed"]

_PIECE = re.compile(r"<[a-z]+>|</think>| ?\\boxed\{|\n\n|\n| ?[A-Za-z]+| ?[0-9]{1,2}|[^\n]")
_BOX = re.compile(r"\\boxed\{([^{}]*)\}")
_LINE = re.compile(r"([^\n]*)(\n*)")


@dataclass(frozen=True)
class Statement:
    """A value stated.

    Args:
        kind: how.
        name: of what.
        value: None where it says "not known".
        right: whether it is the true value; None without a value, or for a name that the problem
            does not have.
        at: tokens of the output when it is stated, its own among them.
    """

    kind: StatementKind
    name: str
    value: int | None
    right: bool | None
    at: int

    def says(self, name: str) -> bool:
        """Whether it says what a name is: not to ask for it, to compute it again, or by a guess."""
        said = self.kind in ("settled", "mended", "recalled")
        return said and self.name == name and self.value is not None


@dataclass(frozen=True)
class LineReading:
    """A line of the output, its blank line among it.

    Args:
        kind: what it does.
        name: what it speaks of, if anything.
        start, end: its tokens.
        whole: the language has such lines.
        misread: it takes an expression, or quotes a fact, that the problem does not have.
        disagrees: it is a check that says that a value is wrong.
    """

    kind: LineKind
    name: str | None
    start: int
    end: int
    whole: bool
    misread: bool
    disagrees: bool


@dataclass(frozen=True)
class ChainReading:
    """What an output says. Places are numbers of tokens from its beginning.

    Args:
        goal: the name that is asked for.
        tokens: of the output.
        lines: all of it.
        statements: in their order.
        answer: what stands in the last box; None without one.
        solved: the answer is the problem's.
        gave_up: it writes what is taught for giving up.
        first_stated, first_stated_at: the first value stated of the goal, and where; checks that
            ask for it or compute it do not count.
        last_stated, last_stated_at: the last one.
        first_right_at: where the goal's value is first stated right.
        best_at: end of the last line that raised the number of names whose right value is known
            above what it ever was; 0 if none did.
        best: that number.
        right_to_wrong, wrong_to_right, wrong_to_wrong: values that a "Wait" changed.
        forgotten: times that a settled value is "not known", until it is stated again once.
        wrong: names of which a wrong value was ever settled.
    """

    goal: str
    tokens: int
    lines: tuple[LineReading, ...]
    statements: tuple[Statement, ...]
    answer: str | None
    solved: bool
    gave_up: bool
    first_stated: int | None
    first_stated_at: int | None
    last_stated: int | None
    last_stated_at: int | None
    first_right_at: int | None
    best_at: int
    best: int
    right_to_wrong: int
    wrong_to_right: int
    wrong_to_wrong: int
    forgotten: int
    wrong: int

    @property
    def wasted(self) -> int:
        """Tokens of an unsolved output behind the last line that added something right: "W"."""
        return 0 if self.solved else self.tokens - self.best_at

    def stated(self, tokens: int) -> int | None:
        """The value last stated of the goal in so many tokens; None where none was."""
        found = None
        for one in self.statements:
            if one.at > tokens:
                break
            if one.says(self.goal):
                found = one.value
        return found

    def by_kind(self, loop: int = 0) -> dict[str, int]:
        """Tokens by what their line does.

        Args:
            loop: tokens at the end that only repeat, exactly; they count as a kind of their own.
        """
        counted: Counter[str] = Counter()
        begins = self.tokens - loop
        for one in self.lines:
            counted[one.kind] += max(0, min(one.end, begins) - one.start)
        if not self.lines:  # tokens without any text
            counted["unknown"] = begins
        return {kind: counted[kind] for kind in LINE_KINDS} | {LOOP: loop}


def pieces(text: str) -> list[str]:
    """A text split as the reasoner's tokenizer does."""
    return _PIECE.findall(text)


def values(problem: Problem) -> dict[str, int]:
    """The true value of every name of a problem."""
    found: dict[str, int] = {}

    def value(name: str) -> int:
        if name not in found:
            fact = problem.fact_of[name]
            found[name] = _result(fact, [value(operand) for operand in fact.operands])
        return found[name]

    for fact in problem.facts:
        value(fact.name)
    return found


def _result(fact: Fact, operands: Sequence[int]) -> int:
    if fact.kind == "twice":
        return 2 * operands[0]
    if fact.kind in ("sum", "diff"):
        return operands[0] + operands[1] * (1 if fact.kind == "sum" else -1)
    assert fact.number is not None
    if fact.kind == "given":
        return fact.number
    return operands[0] + fact.number * (1 if fact.kind == "plus" else -1)


def read(problem: Problem, output: str | Sequence[bytes]) -> ChainReading:
    """What an output of a problem says, whatever text it is.

    Args:
        problem: the one it was asked.
        output: the bytes of its tokens, `eos` with or without; a text is split as the reasoner's
            tokenizer does.
    """
    parts = [one.encode() for one in pieces(output)] if isinstance(output, str) else output
    text = b"".join(parts).decode("latin-1")  # a character a byte, so places are those of bytes
    reader = _Reader(problem, [*accumulate(map(len, parts))])
    start = 0
    for found in _LINE.finditer(text):
        if found.end() > start:
            reader.take(line(found[1]), start, found.end(), cut=not found[2])
        start = found.end()
    return reader.reading(text)


class _Reader:
    """What is known so far.

    Args:
        problem: the one that is asked.
        ends: of the output's tokens, in characters.
    """

    def __init__(self, problem: Problem, ends: Sequence[int]) -> None:
        self.problem, self.ends = problem, ends
        self.true = values(problem)
        self.lines: list[LineReading] = []
        self.statements: list[Statement] = []
        self.held: dict[str, int] = {}  # what was settled or mended last
        self.lacked: set[tuple[str, str]] = set()  # names and operands that were not known there
        self.checks: dict[str, LineKind] = {}  # those that wait for an operand
        self.checked: set[str] = set()
        self.gone: set[str] = set()  # "not known", the last time they were spoken of
        self.wrong: set[str] = set()
        self.mended: Counter[tuple[bool, bool]] = Counter()
        self.passes = self.forgotten = self.best = self.best_at = 0

    def take(self, one: ChainLine, start: int, end: int, *, cut: bool) -> None:
        """The next line.

        Args:
            one: the line.
            start, end: where it stands, in characters, its blank line among it.
            cut: the output ends in it.
        """
        head = one.head
        name = head.name if head else None
        whole = one.whole or (cut and one.begun)
        settled = one.last("SI")
        if settled is not None and name is not None and settled.name != name:
            whole = False
        kind = self.kind(one, whole)
        self.lines.append(
            LineReading(
                kind, name, self.count(start), self.count(end), whole,
                self.misread(one, cut), one.has("X"),
            )
        )  # fmt: skip
        for clause in ((head,) if head else ()) + one.clauses:
            self.state(clause, name, start)
        right = sum(self.true.get(name) == value for name, value in self.held.items())
        if right > self.best:
            self.best, self.best_at = right, self.count(end)

    def count(self, at: int) -> int:
        """Tokens that end up to a place."""
        return bisect_right(self.ends, at) if at else 0

    # -- what a line does --------------------------------------------------------------------

    def kind(self, one: ChainLine, whole: bool) -> LineKind:
        head = one.head
        if head is None:
            return "unknown"
        if head.letter in "cb":
            kind = self.check(one, head)
            if kind is not None:
                return kind if whole else "lost"
        if not whole or one.has("R"):
            return "lost"
        if head.letter in "ob":
            return self.derivation(one, head)
        if head.letter == "v":
            self.passes += 1
            return "checked" if self.passes == 1 else "checked again"
        return _SIMPLE[head.letter]

    def check(self, one: ChainLine, head: Clause) -> LineKind | None:
        """Of a check; None for a line that goes on with a derivation."""
        assert head.name is not None
        if head.letter == "b" and head.name not in self.checks and not one.has("MVXI"):
            return None
        again: LineKind = "checked again" if head.name in self.checked else "checked"
        kind = self.checks.pop(head.name, again)
        if one.lacks is not None:
            self.checks[head.name] = kind
        if head.letter == "c":
            self.checked.add(head.name)
        return "mended" if one.has("I") else kind

    def derivation(self, one: ChainLine, head: Clause) -> LineKind:
        assert head.name is not None
        lacks = one.lacks
        again = head.name in self.held
        if lacks is not None and lacks.name is not None:
            again |= (head.name, lacks.name) in self.lacked
            self.lacked.add((head.name, lacks.name))
        return "derived again" if again else "derived"

    def misread(self, one: ChainLine, cut: bool) -> bool:
        head, taken = one.head, one.last("T")
        fact = self.problem.fact_of.get(head.name or "") if head else None
        if head is None or (taken is None and head.quote is None and not one.has("G")):
            return False
        if fact is None:
            return True
        if head.quote is not None:
            unended = cut and not head.quote.endswith(".")
            return head.quote not in fact.tellings and not unended
        if taken is None:
            return fact.kind != "given"
        signs = {"plus": "plus", "sum": "plus", "minus": "minus", "diff": "minus"}
        written = (taken.sign, taken.name, taken.second, taken.number)
        first, second = (*fact.operands, None, None)[:2]
        return written != (signs.get(fact.kind), first, second, fact.number)

    # -- what it says ------------------------------------------------------------------------

    def state(self, clause: Clause, name: str | None, start: int) -> None:
        """What a clause of a line that speaks of `name` says."""
        kind = _STATED.get(clause.letter)
        if kind is None:
            return
        of = clause.name if clause.name is not None else name
        if clause.letter == "F":  # it names nothing: what was just said not to be known
            of = self.statements[-1].name if self.statements else None
        if of is None:
            return
        value = clause.number
        right = None if value is None or of not in self.true else value == self.true[of]
        at = bisect_left(self.ends, start + clause.said) + 1
        self.statements.append(Statement(kind, of, value, right, at))
        if value is None:
            self.forgotten += of in self.held and of not in self.gone
            self.gone.add(of)
            return
        if kind != "guessed":
            self.gone.discard(of)
        if kind in ("settled", "mended"):
            if kind == "mended" and of in self.held and right is not None:
                self.mended[self.held[of] == self.true[of], right] += 1
            self.held[of] = value
            if right is False:
                self.wrong.add(of)

    def reading(self, text: str) -> ChainReading:
        """All that was said."""
        boxes = _BOX.findall(text)
        answer = boxes[-1].strip() if boxes else None
        goal = self.problem.goal
        stated = [one for one in self.statements if one.says(goal)]
        first, last = (stated[0], stated[-1]) if stated else (None, None)
        return ChainReading(
            goal=goal,
            tokens=len(self.ends),
            lines=tuple(self.lines),
            statements=tuple(self.statements),
            answer=answer,
            solved=answer == self.problem.answer,
            gave_up=any(one.kind == "gave up" for one in self.lines),
            first_stated=first.value if first else None,
            first_stated_at=first.at if first else None,
            last_stated=last.value if last else None,
            last_stated_at=last.at if last else None,
            first_right_at=next((one.at for one in stated if one.right), None),
            best_at=self.best_at,
            best=self.best,
            right_to_wrong=self.mended[True, False],
            wrong_to_right=self.mended[False, True],
            wrong_to_wrong=self.mended[False, False],
            forgotten=self.forgotten,
            wrong=len(self.wrong),
        )


_SIMPLE: Mapping[str, LineKind] = {
    "t": "asked", "a": "asked", "e": "answer", "x": "answer", "g": "gave up", "n": "gave up",
    "r": "lost", "c": "checked",
}  # fmt: skip
_STATED: Mapping[str, StatementKind] = {
    "S": "settled", "I": "mended", "N": "recalled", "U": "recalled", "c": "doubted",
    "M": "computed", "F": "guessed",
}  # fmt: skip
