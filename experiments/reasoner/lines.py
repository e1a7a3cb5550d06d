"""The lines of a chain, read back: which clauses each is made of, and whether the language has it.

A line is a head ("Now Ben,"), clauses (" Kate is 7", " plus 3") and an end (" After Kate, Ben is
10."). Each clause has a letter; the sequences of letters that make a line are few and listed.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from . import words

_NAME, _NUMBER = "[A-Za-z]+", "[0-9]{1,3}(?![0-9])"
_PLACE = rf"(?:First|After {_NAME})"
_END = r"(?:\.|\Z)"  # a text may be cut off behind a number


def _any(forms: Iterable[str]) -> str:
    return "(?:" + "|".join(map(re.escape, sorted(forms, key=len, reverse=True))) + ")"


def _of(forms: Iterable[str]) -> str:
    """Forms that end in a variable's name and a comma."""
    return _any(form.removesuffix("{v},") for form in forms) + f"(?P<name>{_NAME}),"


#: What a line begins with, by letter.
_HEADS = {
    "t": words.THINK,
    "e": words.END_THINK,
    "a": _of(words.ASK),
    "c": rf"{_PLACE}, (?P<name>{_NAME}) was (?:(?P<number>{_NUMBER})|not known)(?:\?|\Z)"
    rf"(?P<quote> [^\n.]*{_END})?",
    "v": _any((*words.CHECK, *words.RECHECK)),
    "r": _any(words.RESTART),
    "g": _any(words.GIVE_UP),
    "n": re.escape(words.NOT_KNOWN),
    "x": rf"The answer is {re.escape(words.BOXED)}(?P<number>{_NUMBER})\}}{_END}",
    "o": _of(words.OPEN),
    "b": _of(words.BACK),
}
#: What follows, by letter; the first that fits is taken.
_CLAUSES = {
    "S": rf" (?:{_PLACE}|Again), (?P<name>{_NAME}) is (?P<number>{_NUMBER}){_END}",
    "I": rf"{_any(words.WAIT)} (?P<name>{_NAME}) is (?P<number>{_NUMBER}){_END}",
    "R": _any(words.UNSEEN),
    "G": _any(words.GIVEN),
    "T": rf"{_any(words.TAKE)} (?P<name>{_NAME})"
    rf"(?: twice| (?P<sign>plus|minus) (?:(?P<number>{_NUMBER})|(?P<second>{_NAME})))(?:,|\Z)",
    "V": _any(right for right, _ in words.VERDICTS),
    "X": _any(wrong for _, wrong in words.VERDICTS),
    "F": rf" guess (?P<number>{_NUMBER})",
    "W": " twice",
    "P": rf" (?:plus|minus) (?P<number>{_NUMBER})",
    "p": rf" (?:plus|minus)(?= {_NAME} is )",
    "M": rf"{_any(words.MAKES)} (?P<number>{_NUMBER})",
    "U": rf" (?P<name>{_NAME}) is not known",
    "N": rf" (?P<name>{_NAME}) is (?P<number>{_NUMBER})",
    "": f"[,.]|{words.EOS}",  # of no meaning
}
_BEGIN, _FOLLOW = (
    [(letter, re.compile(form)) for letter, form in table.items()] for table in (_HEADS, _CLAUSES)
)
_WORD = re.compile(r" ?[A-Za-z]+| ?[0-9]+|.", re.DOTALL)


def _sequences() -> Iterator[str]:
    """Every sequence of letters that makes a line."""
    operand = ("N", "UF")
    pairs = [f"{one}p{other}" for one, other in itertools.product(operand, operand)]
    values = [one + end for one in operand for end in "PW"] + pairs
    lacking = ["U", *(f"{one}pU" for one in operand)]
    judged = ("V", "XI", "S")
    yield from ("t", "e", "v", "r", "g", "n", "x", "aN", "aU", "oR", "oGS")
    yield from (f"oT{value}S" for value in values)
    yield from (f"{head}{value}" for head in ("oT", "b", "c") for value in lacking)
    for head, value in itertools.product("bc", values):
        yield f"{head}{value}S"
        yield from (f"{head}{value}M{end}" for end in judged)
    yield from (f"c{end}" for end in judged)


_WHOLE = frozenset(_sequences())
_BEGUN = frozenset(one[:at] for one in _WHOLE for at in range(len(one) + 1))


@dataclass(frozen=True)
class Clause:
    """A part of a line.

    Args:
        letter: what it is.
        end: where it ends, in characters of its line.
        said: where its number ends, or all of it if there is none.
        name, number: those in it, if there are any.
        sign: of an expression, "plus" or "minus"; None for twice.
        second: the other operand of an expression.
        quote: the fact that a check quotes.
    """

    letter: str
    end: int
    said: int
    name: str | None = None
    number: int | None = None
    sign: str | None = None
    second: str | None = None
    quote: str | None = None


@dataclass(frozen=True)
class ChainLine:
    """A line of a chain, without the blank line behind it.

    Args:
        head: what it begins with; None where nothing of the language begins so.
        clauses: those behind it that could be read, in order.
        whole: the language has it: nothing else stands between its clauses, and in this order.
        begun: it is how such a line begins: for one that was cut off.
    """

    head: Clause | None
    clauses: tuple[Clause, ...]
    whole: bool
    begun: bool

    def has(self, letters: str) -> bool:
        """Whether it has a clause of one of these letters."""
        return any(clause.letter in letters for clause in self.clauses)

    def last(self, letters: str) -> Clause | None:
        """The last clause of one of these letters."""
        return next((one for one in reversed(self.clauses) if one.letter in letters), None)

    @property
    def lacks(self) -> Clause | None:
        """The last operand that is not known, and not guessed either."""
        letters = [one.letter for one in self.clauses]
        lacking = [
            at
            for at, letter in enumerate(letters)
            if letter == "U" and letters[at + 1 : at + 2] != ["F"]
        ]
        return self.clauses[lacking[-1]] if lacking else None


@functools.lru_cache(maxsize=1 << 12)
def line(text: str) -> ChainLine:
    """A line of any text whatever."""
    head = _clause(_BEGIN, text, 0)
    at = head.end if head else 0
    clauses: list[Clause] = []
    broken = behind = False  # behind: something unknown stands there, with nothing known behind it
    while at < len(text):
        found = _clause(_FOLLOW, text, at)
        if found is None:
            behind = True
            word = _WORD.match(text, at)
            assert word is not None  # it takes any character
            at = word.end()
            continue
        at = found.end
        if found.letter:
            broken |= behind
            clauses.append(found)
    broken |= head is not None and head.letter == "c" and head.quote is None and at > head.end
    letters = (head.letter if head else "") + "".join(one.letter for one in clauses)
    return ChainLine(
        head,
        tuple(clauses),
        letters in _WHOLE and not broken and not behind and text.endswith((".", ">")),
        letters in _BEGUN and not broken and (head is not None or not clauses),
    )


def _clause(table: list[tuple[str, re.Pattern[str]]], text: str, at: int) -> Clause | None:
    for letter, form in table:
        found = form.match(text, at)
        if found:
            parts: dict[str, str | None] = found.groupdict()
            number = parts.get("number")
            return Clause(
                letter,
                end=found.end(),
                said=found.end() if number is None else found.end("number"),
                name=parts.get("name"),
                number=None if number is None else int(number),
                sign=parts.get("sign"),
                second=parts.get("second"),
                quote=parts.get("quote"),
            )
    return None
