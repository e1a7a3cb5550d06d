"""Whether a text answers its problem: the scorers exact, math and stated, from their description.

Which answers count is told in docs/own_data.md. Numbers are compared as fractions here; what is no
number by math-verify, which the description names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

#: Minus sign, apostrophe and two spaces of print, as they are typed.
TYPED = {0x2212: "-", 0x2019: "'", 0xA0: " ", 0x202F: " "}
WORDY = ("thousand", "million", "billion", "trillion")
#: Behind a number these make another thing of it than a number with a unit.
NO_UNITS = {"pi", "and", "or", "to", "plus", "minus", "times", "over", "by", "am", "pm", "dozen"}
NO_UNITS |= {"hundred", "sqrt"}
LETTERS = set("mgslLhV")


def solved(scorer: str, text: str, gold: str | Sequence[str] | None, ended: bool) -> bool:
    """Whether a text is right.

    Args:
        scorer: exact, math or stated.
        text: the output.
        gold: the accepted answer, or several of which one is enough.
        ended: whether the text ended by itself.

    Raises:
        NotImplementedError: a scorer or a problem that this program has no definition of.
    """
    if gold is None:
        raise NotImplementedError("a problem without an answer")
    accepted = [gold] if isinstance(gold, str) else list(gold)
    match scorer:
        case "exact":
            return boxed(text) in [one.strip() for one in accepted]
        case "math":
            box = boxed(text)
            return box is not None and any(same_mathematics(box, one) for one in accepted)
        case "stated":
            return any(_states(text, one, ended) for one in accepted)
        case _:
            raise NotImplementedError(f"scorer {scorer}")


def boxed(text: str) -> str | None:
    """What the last complete box holds, braces balanced."""
    *_, found = None, *_boxes(text)
    return found


def _boxes(text: str) -> Iterator[str]:
    for part in range(text.count("\\boxed{")):
        inside = text.split("\\boxed{", part + 1)[-1]
        depth = 1
        for at, mark in enumerate(inside):
            depth += (mark == "{") - (mark == "}")
            if depth == 0:
                yield inside[:at].strip()
                break


# ---------------------------------------------------------------- what a text states


def stated(text: str, numeric: bool, ended: bool) -> tuple[str, str] | None:
    """The answer of a text and a word of the rule that found it: the first of five that does.

    Args:
        text: the output.
        numeric: whether the gold answer is a number.
        ended: whether the text ended by itself.
    """
    text = re.split(r"(?i)</think(?:ing)?>", text)[-1]
    text = re.split(r"(?i)<think(?:ing)?>", text)[0]
    if numeric:
        text = text.translate(TYPED)
    for name, rule in RULES.items():
        found = rule(text, numeric, ended)
        if found is not None:
            return found, name
    return None


def _tags(text: str, *_: bool) -> str | None:
    closed = text.rfind("</answer>")
    opened = text.rfind("<answer>", 0, max(closed, 0))
    return None if min(opened, closed) < 0 else text[opened + len("<answer>") : closed].strip()


def _box(text: str, *_: bool) -> str | None:
    return boxed(text)


def _hashes(text: str, numeric: bool, ended: bool) -> str | None:
    over = text.split("\n")[: None if ended else -1]
    filled = [line for line in over if line.strip()]
    for line in filled[::-1] if numeric else filled[-1:]:
        if "####" not in line:
            continue
        behind = line[line.rindex("####") + 4 :].strip()
        if behind and "#" not in behind and (number(behind) if numeric else True):
            return behind
    return None


PHRASE = re.compile(
    r"(?i)\banswer\b[*_]{0,3}"
    r"(?:\s(?:to|for|of)\b[^.\n:=]{0,100}?)?\s?[*_]{0,3}"
    r"(?:\b(is|was|equals|(?:would|should|must) be)\b|([:=]))[*_]{0,3}\s?:?[*_]{0,3}"
)


def _phrase(text: str, numeric: bool, ended: bool) -> str | None:
    if not ended:
        return None
    for phrase in [*PHRASE.finditer(text)][::-1]:
        found = _said_next(text[phrase.end() : phrase.end() + 1000].lstrip(), numeric, phrase[2])
        if found is not None:
            return found
    return None


def _said_next(rest: str, numeric: bool, colon: str | None) -> str | None:
    for left, right in (("$$", "$$"), ("\\[", "\\]"), ("\\(", "\\)"), ("$", "$"), *STRONG):
        inside, closed, behind = rest[len(left) :].partition(right)
        if not (rest.startswith(left) and closed and inside.strip()):
            continue
        # A dollar sign that is money opens nothing.
        money = left == "$" and ("\n" in inside or inside != inside.strip() or behind[:1].isdigit())
        if not money and (not numeric or number(inside)):
            return inside.strip()
    sentence = next(iter(sentences(rest)), "").strip(" *_`\"'").rstrip("!?;.\n")
    if re.match(r"(?i)not\b|n't\b", sentence):
        return None
    if not numeric:
        return sentence.partition("**")[0].strip(" .") or None
    if number(sentence):
        return sentence
    if not colon:
        return next(numbers(sentence.rpartition("=")[2]), None)
    first = next(numbers(sentence), "")
    return first if first and sentence.startswith(first) and "=" not in sentence else None


STRONG = (("**", "**"), ("__", "__"))
COURTESY = re.compile(
    r"(?i)let me know|feel free|hope (?:this|that|it)|if you (?:have|need|want)|happy to help"
)
REFUSED = re.compile(
    r"(?i)\b(?:i|we)(?:\s?'m| am| are)? "
    r"(?:can ?not|can't|unable|not able|sorry|do(?: not|n't) (?:have|know))"
    r"|cannot be (?:determined|solved|answered)|not enough information"
)


def _last(text: str, numeric: bool, ended: bool) -> str | None:
    told = [one for one in sentences(text) if not COURTESY.search(one)]
    if not (ended and numeric and told) or REFUSED.search(told[-1]):
        return None
    for sentence in told[::-1]:
        every = [*numbers(sentence)]
        if every:
            bold = re.findall(r"\*\*([^*_\n]+?)\*\*|__([^*_\n]+?)__", sentence)
            strong = [last for a, b in bold for last in [*numbers(a or b)][-1:]]
            return strong[0] if len(strong) == 1 else every[-1]
    return None


RULES: dict[str, Callable[[str, bool, bool], str | None]] = {
    "<answer>": _tags,
    "boxed": _box,
    "####": _hashes,
    "answer is": _phrase,
    "last number": _last,
}


def sentences(text: str) -> Iterator[str]:
    """Up to each full stop, mark or end of line behind which there is space."""
    for line in text.split("\n"):
        yield from (
            one for one in re.split(r"(?<=[^\s.]\.)(?=\s)|(?<=[!?;])(?=\s)", line) if one.strip()
        )


# ---------------------------------------------------------------- numbers

FIGURE = re.compile(
    r"\d*\\[dt]?frac\s*(?:\{[^{}]*\}\s*\{[^{}]*\}|\d\s*\d)"
    r"|\d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+"
)


def numbers(text: str) -> Iterator[str]:
    """Each number of a sentence with sign, currency, percent and scale; no ordinals and bullets."""
    at = 0
    while (figure := FIGURE.search(text, at)) is not None:
        begin, at = figure.span()
        under = re.match(r"\s?/\s?\d+(?![\d/])", text[at:])
        if under and "frac" not in figure[0]:
            at += under.end()
        before = re.search(r"(?:(?<![\d)}\]])[-+])?(?:\\?[$€£]\s?)?[-+]?$", text[:begin])
        assert before is not None
        start = before.start()
        ahead, follows = text[:start], text[at:]
        if (ahead and re.match(r"[\w.,/]", ahead[-1])) or re.match(r"\d|[.:/]\d", follows):
            # Part of a word, or of something with more marks than a number has.
            at += len(re.match(r"[\d.,:/]*", follows)[0])  # type: ignore[index]
            continue
        first = not ahead.strip()
        if re.match(r"(?i)(?:st|nd|rd|th)\b", follows):
            continue
        if first and re.match(r"[.)]\s", follows) and follows[1:].strip():
            continue
        more = re.match(rf"\s?\\?%|\s(?:percent|{'|'.join(WORDY)})\b", follows)
        at += more.end() if more else 0
        yield text[start:at].strip()


def number(text: str) -> set[Fraction]:
    """The number that a text is, of a percentage both that it may be; empty where it is none."""
    if len(text) > 400:
        return set()
    text = text.translate(TYPED) if boxed(text) is None else str(boxed(text)).translate(TYPED)
    text = re.sub(r"\\(?:text\w*|math\w*|mbox|operatorname)\s*\{([^{}]*)\}", r" \1 ", text)
    text = re.sub(r"(?:\\,|\{,\}|,)(?=\d{3})", "\0", text)  # thousands, each checked below
    text = re.sub(
        r"\\[()\[\],!;:> ]|\\left|\\right|\\displaystyle|\^\{?\\circ\}?|\\circ", " ", text
    )
    text = re.sub(r"[*`$€£°~≈]|\\(?=[%$])", " ", text).strip(" .!,;\n")
    if "=" in text:
        if re.search(r",\s|,(?!\0)|[;<>≤≥≠!]|\\(?:leq?|geq?|neq?|in)\b|\b(?:and|or)\b", text):
            return set()
        text = text[text.rindex("=") + 1 :].strip()
    text = re.sub(
        r"\\[dt]?frac\s*(?:\{([^{}]*)\}\s*\{([^{}]*)\}|(\d)\s*(\d))",
        lambda one: f" {(one[1] or one[3]).strip()}/{(one[2] or one[4]).strip()}",
        text,
    ).strip()
    text = re.sub(
        r"(?i)^(?:about|approximately|around|roughly|exactly|a total of|\\approx|usd|us|eur)\s*",
        "",
        text,
    )
    found = re.match(r"([-+]?)\s*(\d{1,3}(?:\0\d{3})+|\d+|(?=\.\d))(\.\d*)?", text)
    if found is None or len(found[2]) > 100:
        return set()
    value = Fraction((found[2].replace("\0", "") or "0") + (found[3] or "").rstrip("."))
    rest = text[found.end() :]
    part = re.match(r"\s+(\d+)\s*/\s*(\d+)|\s*/\s*(\d+)", rest)
    if part is not None:
        if int(part[2] or part[3]) == 0:
            return set()
        value = value / int(part[3]) if part[3] else value + Fraction(int(part[1]), int(part[2]))
        rest = rest[part.end() :]
    value = -value if found[1] == "-" else value
    percent = re.match(r"\s*(?:%|(?:percent|per cent)\b)", rest)
    rest = rest[percent.end() :] if percent else rest
    scale = re.match(rf"(?i)\s*({'|'.join(WORDY)})\b", rest)
    if scale is not None:
        value *= 1000 ** (1 + WORDY.index(scale[1].lower()))
        rest = rest[scale.end() :]
    return ({value, value / 100} if percent else {value}) if _is_unit(rest) else set()


def _is_unit(text: str) -> bool:
    """Whether words behind a number leave it what it is: up to six, no letter alone."""
    words = re.sub(r"\^?[²³23](?=\W|$)|[.'-](?=\w|\s|$)", " ", text).split()
    plain = all(word.isalpha() and (len(word) > 1 or word in LETTERS) for word in words)
    return plain and len(words) <= 6 and not NO_UNITS & {word.lower() for word in words}


# ---------------------------------------------------------------- comparison


def _states(text: str, gold: str, ended: bool) -> bool:
    numeric = bool(number(gold))
    found = stated(text, numeric, ended)
    if found is None:
        return False
    if numeric:
        return same_number(found[0], gold)
    mathematics = re.search(r"[\\^_{}=+*<>]|\d", gold) is not None
    same = words(found[0]) == words(gold)
    return same or (mathematics and same_mathematics(found[0], gold))


def same_number(answer: str, gold: str) -> bool:
    """Whether an answer is the gold number; a sentence with one number is that."""
    mine = number(answer)
    every = {frozenset(number(one)) for one in numbers(answer)}
    if not mine and len(every) == 1:
        mine = set(every.pop())
    return bool(mine & number(gold))


def words(text: str) -> list[str]:
    """The words of an answer, without case, brackets and stops at its ends."""
    text = re.sub(r"\\(?:text\w*|math\w*|mbox|operatorname)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\?[()\[\]]|[*`$\"']", " ", text.translate(TYPED))
    return text.strip(" .!,;:").casefold().split()


def same_mathematics(answer: str, gold: str) -> bool:
    """Whether two answers are equal: as numbers, else as math-verify says."""
    if number(answer) & number(gold):
        return True
    from math_verify import parse, verify

    written = [re.fullmatch(r"\w+_\{?(\d+)\}?", side.strip()) for side in (answer, gold)]
    if all(written) and len({one[1] for one in written if one}) == 2:
        return False  # it drops the base
    sides = [parse(f"\\boxed{{{side}}}", parsing_timeout=5) for side in (gold, answer)]
    return bool(verify(*sides, timeout_seconds=5))
