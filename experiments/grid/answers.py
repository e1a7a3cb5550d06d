r"""Where an output states its answer, and which answers are the same number.

A prompt that asks for a box is judged by the box; without that a model states its answer as it
likes, and `find` takes the first of `RULES` that matches. The text in `<think>...</think>` holds no
answer. In a text that was cut only a complete mark is an answer: numbers and sentences may be steps
on the way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Literal, TypeAlias

#: What a gold answer is, which says what an answer is compared as.
Kind: TypeAlias = Literal["number", "mathematics", "words"]

_BRACES = re.compile(r"\\boxed\{|[{}]")
#: Typographic signs as they are typed: the minus sign, the apostrophe, spaces that do not break.
_TYPED = str.maketrans({"\u2212": "-", "\u2019": "'", "\u00a0": " ", "\u202f": " "})
#: Characters behind a phrase in which its answer stands, and phrases, the last, that are read.
_NEAR, _PHRASES = 1000, 100
_THINKING = re.compile(r"<think(?:ing)?>", re.IGNORECASE)
_THOUGHT = re.compile(r"</think(?:ing)?>", re.IGNORECASE)

#: A number as it stands in a text, with its sign, currency, percent sign and scale.
_NUMBER = re.compile(
    r"""
    (?<![\w.,/])                               # not within a word, a number or a fraction
    (?:(?<![\d)}\]])[-+])?                    # a sign, where nothing is subtracted from
    (?:\\?[$€£]\s?)?
    (?:[-+](?=\\?[d t]?frac|[\d.]))?
    (?:
      \d*\\[dt]?frac\s*(?:\{[^{}]*\}\s*\{[^{}]*\}|\d\s*\d)
      | (?:\d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:\s?/\s?\d+(?![\d/]))?
      | \.\d+
    )
    (?!\d|[.:/]\d)
    (?:\s?\\?%|\s(?:percent|thousand|million|billion|trillion)\b)?
    """,
    re.VERBOSE,
)
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b|[.)]\s", re.IGNORECASE)

_PHRASE = re.compile(
    r"""
    \banswer\b[*_]{0,3}
    (?:\s(?:to|for|of)\b[^.\n:=]{0,100}?)?
    \s?[*_]{0,3}
    (?P<says>(?:\s|\b)(?:is|was|equals|would\sbe|should\sbe|must\sbe)\b|=|:)
    [*_]{0,3}\s?:?[*_]{0,3}[^\S\n]*
    """,
    re.VERBOSE | re.IGNORECASE,
)
_MATH_SPAN = re.compile(
    r"\s*(?:\$\$(?P<a>.+?)\$\$|\\\[(?P<b>.+?)\\\]|\\\((?P<c>.+?)\\\)"
    r"|\$(?P<d>(?=\S)[^$\n]*?(?<=\S))\$(?![\d]))",
    re.DOTALL,
)
_BOLD = re.compile(r"\s*(?:\*\*|__)(?P<inside>[^*_\n]+?)(?:\*\*|__)")
_SENTENCE_END = re.compile(r"(?<=[^\W\d_])\.(?=\s|$)|(?<=[\d)%$}*\]])\.(?=\s|$)|[!?;](?=\s|$)|\n")
_COURTESY = re.compile(
    r"let me know|feel free|hope (?:this|that|it)|if you (?:have|need|want)|happy to help",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"\b(?:I|we)(?:\s?'m|\sam|\sare)?\s(?:can(?:not|\snot|'t)|unable|not\sable|sorry"
    r"|do(?:\snot|n't)\s(?:have|know))"
    r"|cannot\sbe\s(?:determined|solved|answered)|not\senough\sinformation",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class StatedAnswer:
    """An answer, and the rule that found it."""

    answer: str
    rule: str


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete `\boxed{...}`, inner braces balanced; None without one."""
    boxes: dict[int, str] = {}
    open_: list[tuple[int, bool]] = []  # where what stands in a brace begins, and whether in a box
    for brace in _BRACES.finditer(text):
        if brace[0] != "}":
            open_.append((brace.end(), brace[0] != "{"))
        elif open_:
            begin, in_box = open_.pop()
            if in_box:
                boxes[begin] = text[begin : brace.start()]
    return boxes[max(boxes)] if boxes else None


def _in_tags(text: str, kind: Kind, ended: bool) -> str | None:  # noqa: ARG001
    """What stands between the last complete `<answer>` and `</answer>`."""
    before, closed, _ = text.rpartition("</answer>")
    _, opened, inside = before.rpartition("<answer>")
    return inside.strip() if closed and opened else None


def _in_box(text: str, kind: Kind, ended: bool) -> str | None:  # noqa: ARG001
    return last_boxed(text)


def _behind_hashes(text: str, kind: Kind, ended: bool) -> str | None:
    """What follows the last `####` on its line, which has to be over; no heading."""
    lines = text.split("\n")
    if not ended:
        lines = lines[:-1]
    lines = [line for line in lines if line.strip()]
    for line in reversed(lines if kind == "number" else lines[-1:]):
        _, hashes, behind = line.rpartition("####")
        is_answer = hashes and "#" not in behind and behind.strip()
        if is_answer and (kind != "number" or values(behind)):
            return behind.strip()
    return None


def _by_phrase(text: str, kind: Kind, ended: bool) -> str | None:
    """What the last "the answer is" or "Answer:" says, where it says one."""
    if not ended:
        return None
    for phrase in reversed(list(_PHRASE.finditer(text))[-_PHRASES:]):
        at_once = phrase["says"] in (":", "=")
        if (answer := _stated(text[phrase.end() :][:_NEAR], kind, at_once)) is not None:
            return answer
    return None


def _stated(rest: str, kind: Kind, at_once: bool) -> str | None:
    """The answer that a text begins with; `at_once`: with nothing before it."""
    rest = rest.lstrip()
    span = _MATH_SPAN.match(rest)
    if span is not None:
        inside = next(group for group in span.groups() if group is not None)
        if kind != "number" or values(inside):
            return inside.strip()
    bold = _BOLD.match(rest)
    if bold is not None and (kind != "number" or values(bold["inside"])):
        return bold["inside"].strip()
    end = _SENTENCE_END.search(rest)
    sentence = (rest if end is None else rest[: end.start()]).strip(" *_`\"'")
    if re.match(r"not\b|n't\b", sentence, re.IGNORECASE):
        return None
    if kind != "number":
        # Emphasis that began before the phrase ends with the answer.
        return sentence.partition("**")[0].strip(" .") or None
    if values(sentence):
        return sentence
    if at_once:
        # "Answer: 72 clips were sold, 24 of them in May" has it at once, a derivation has not.
        first = next(_numbers(sentence), None)
        begins = first is not None and sentence.startswith(first) and "=" not in sentence
        return first if begins else None
    behind = sentence.rpartition("=")[2]
    return next(_numbers(behind), None)


def _last_number(text: str, kind: Kind, ended: bool) -> str | None:
    """The last number that is said, or the only one in bold beside it; none of a refusal."""
    if not ended or kind != "number":
        return None
    ends = [0, *(end.end() for end in _SENTENCE_END.finditer(text)), len(text)]
    sentences = [text[begin:end] for begin, end in pairwise(ends)]
    spoken = [part for part in sentences if part.strip() and not _COURTESY.search(part)]
    if not spoken or _REFUSAL.search(spoken[-1]):
        return None
    for sentence in reversed(spoken):
        numbers = list(_numbers(sentence))
        if not numbers:
            continue
        bold = [match["inside"] for match in _BOLD.finditer(sentence)]
        strong = [number for inside in bold for number in [*_numbers(inside)][-1:]]
        return strong[0] if len(strong) == 1 else numbers[-1]
    return None


def _numbers(text: str) -> Iterator[str]:
    """Each number of a text as it stands there, but for ordinals and numbers of a list."""
    for number in _NUMBER.finditer(text):
        begins = not text[: number.start()].strip()
        behind = _ORDINAL.match(text, number.end())
        if behind is not None and (begins or behind[0][0] not in ".)"):
            if begins and behind[0][0] in ".)" and not text[behind.end() :].strip():
                yield number[0].strip()  # "72." is all there is
            continue
        yield number[0].strip()


#: The rules in their order: name, and what it finds in what is said.
RULES: tuple[tuple[str, Callable[[str, Kind, bool], str | None]], ...] = (
    ("the last <answer></answer>", _in_tags),
    ("the last \\boxed{}", _in_box),
    ("the last ####", _behind_hashes),
    ('the last "answer is"', _by_phrase),
    ("the last number", _last_number),
)


def find(text: str, kind: Kind, ended: bool, rules: int = len(RULES)) -> StatedAnswer | None:
    """The answer that an output states, by the first rule that finds one."""
    # The text after the thinking: nothing where that has not ended.
    spoken = _THINKING.split(_THOUGHT.split(text)[-1], maxsplit=1)[0]
    if kind == "number":
        spoken = spoken.translate(_TYPED)
    for name, rule in RULES[:rules]:
        answer = rule(spoken, kind, ended)
        if answer is not None:
            return StatedAnswer(answer, name)
    return None


_DROPPED = re.compile(
    r"\\[,!;:> ]|\\left|\\right|\\displaystyle|[*`$€£°~≈]|\\\$|\^\{?\\circ\}?|\\circ"
)
_WORDS_OF_TEX = re.compile(
    r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}"
)
_BEFORE = re.compile(
    r"(?:about|approximately|around|roughly|exactly|a total of|\\approx|USD|US|EUR)\s*",
    re.IGNORECASE,
)
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]*)\}\s*\{([^{}]*)\}|(\d)\s*(\d))")
#: What makes of something with an equals sign more than one equation.
_SEVERAL = re.compile(r",\s|[;<>≤≥≠!]|\\(?:leq?|geq?|neq?|in)\b|\b(?:and|or)\b")
_PERCENT = re.compile(r"\s*(?:\\?%|percent\b|per cent\b)", re.IGNORECASE)
_PLAIN = re.compile(
    r"(?P<sign>[-+]?)\s*"
    r"(?:(?P<whole>\d{1,3}(?:,\d{3})+|\d+)(?P<point>\.\d*)?|(?P<only>\.\d+))"
    r"(?:\s+(?P<mixed>\d+)\s*/\s*(?P<of>\d+)|\s*/\s*(?P<under>\d+))?"
)
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
#: What may stand behind a number without changing it: words and units, but no letter alone.
_UNIT = re.compile(
    r"(?:\s*(?:[^\W\d_]{2,}|[mgslLhV](?![^\W_]))(?:['-][^\W\d_]+)*\s?\^?[²³23]?\.?){0,6}"
)
_NO_UNIT = re.compile(
    r"\b(?:pi|and|or|to|plus|minus|times|over|by|am|pm|sqrt|squared root|dozen|hundred|i|e|x|y)\b",
    re.IGNORECASE,
)


def values(text: str) -> frozenset[Fraction]:
    r"""The number that a text is, whatever stands around it; nothing where it is none.

    Read over are currency, commas between thousands, units and words behind it, `\text{}`, signs of
    mathematics around it, a full stop, and what stands before an equals sign. A percentage is both:
    25% is 25 and is 0.25.
    """
    if len(text) > 400:
        return frozenset()
    box = last_boxed(text)
    left = text if box is None else box
    left = re.sub(r"\\,(?=\d{3})", ",", left.translate(_TYPED).replace("{,}", ","))
    left = re.sub(r",(?!\d{3})", ", ", left).replace("\\%", "%")
    left = re.sub(r"\\[()\[\]]", " ", left)
    left = _WORDS_OF_TEX.sub(r" \1 ", left)
    left = _DROPPED.sub(" ", left).strip().rstrip(".!,; ")
    if "=" in left:
        if _SEVERAL.search(left):
            return frozenset()
        left = left.rpartition("=")[2].strip()
    left = _FRACTION.sub(_spelled, left).strip()
    if before := _BEFORE.match(left):
        left = left[before.end() :]
    number = _PLAIN.match(left)
    if number is None:
        return frozenset()
    value = _value(number)
    behind = left[number.end() :]
    percent = _PERCENT.match(behind)
    if percent is not None:
        behind = behind[percent.end() :]
    scale = re.match(r"\s*(thousand|million|billion|trillion)\b", behind, re.IGNORECASE)
    if scale is not None and value is not None:
        value, behind = value * _SCALES[scale[1].lower()], behind[scale.end() :]
    if value is None or not _UNIT.fullmatch(behind) or _NO_UNIT.search(behind):
        return frozenset()
    return frozenset({value, value / 100}) if percent is not None else frozenset({value})


def _spelled(fraction: re.Match[str]) -> str:
    above, below = fraction[1] or fraction[3], fraction[2] or fraction[4]
    return f" {above.strip()}/{below.strip()}"


def _value(number: re.Match[str]) -> Fraction | None:
    whole = (number["whole"] or "0").replace(",", "")
    if len(whole) > 100:
        return None
    value = Fraction(whole + (number["point"] or number["only"] or "").rstrip("."))
    for above, below in ((number["mixed"], number["of"]), (None, number["under"])):
        if below is None:
            continue
        if int(below) == 0:
            return None
        value = value / int(below) if above is None else value + Fraction(int(above), int(below))
    return -value if number["sign"] == "-" else value


def kind_of(gold: str) -> Kind:
    """What a gold answer is compared as."""
    if values(gold):
        return "number"
    return "mathematics" if re.search(r"[\\^_{}=+*<>]|\d", gold) else "words"


def same_number(answer: str, gold: str) -> bool:
    """Whether two answers are the same number; a sentence with one number is that number."""
    left = values(answer)
    if not left:
        numbers = {values(number) for number in _numbers(answer)}
        left = numbers.pop() if len(numbers) == 1 else left
    return not left.isdisjoint(values(gold))


def same_words(answer: str, gold: str) -> bool:
    """Whether two answers are the same words, whatever their case, brackets and last full stop."""
    return _words(answer) == _words(gold)


def bare(text: str) -> str:
    """An answer without the signs of mathematics, emphasis and the full stop around it."""
    left = text.strip()
    for before, behind in (("**", "**"), ("`", "`"), ("\\(", "\\)"), ("\\[", "\\]"), ("$", "$")):
        if left.startswith(before) and left.endswith(behind) and len(left) > len(before + behind):
            left = left[len(before) : -len(behind)].strip()
    return left.removesuffix(".")


def _words(text: str) -> str:
    words = _WORDS_OF_TEX.sub(r"\1", text.translate(_TYPED))
    return " ".join(
        re.sub(r"[*`$\"'()\[\]]|\\[()\[\]]", " ", words).strip(" .!,;:").casefold().split()
    )
