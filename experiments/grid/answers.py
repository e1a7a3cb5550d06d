r"""Where an output states its answer.

A prompt that asks for a box is judged by the box; without that a model states its answer as it
likes, and `find` takes what is stated last. Thinking holds no answer, and tokens of the chat are no
words. In a text that was cut only a complete mark is an answer: numbers and sentences may be steps
on the way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from experiments.grid.comparison import kind_of, read
from lil.thinking import state_of

_BRACES = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{|[{}]")
_BARE_BOX = re.compile(r"\\(?:boxed|fbox)\s*([-+]?\d+(?:[.,/]\d+)*|[A-Za-z](?![A-Za-z]))")
_TOGETHER = re.compile(r"[\s$\\().,;]*(?:(?:and|or)\b)?[\s$\\()]*(?:[A-Za-z]\w*\s*=\s*)?")
#: Characters of a sentence that are read, and phrases, the last, that are.
_NEAR, _PHRASES = 1000, 100
_SPECIAL = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<\uff5c[^\uff5c<>\s]{1,40}\uff5c>|</?s>|<(?:eos|bos|pad|unk)>"
    r"|<(?:start|end)_of_turn>"
)
_NEXT_TURN = re.compile(
    r"\n[\s#*>]*(?:question|problem|q|user|human)\s?\d*[*_]*:|<\|(?:im_start|start_header_id)\|>user"
    r"|<start_of_turn>user|<\|user\|>",
    re.IGNORECASE,
)

#: A number as a text has it, with its sign, currency, percent sign and scale.
_NUMBER = re.compile(
    r"""
    (?<![A-Za-z\d_.,/^])(?<!\d\s)              # not within a word, a number or a fraction
    (?:(?<![\d)}\]])[-+\u2013\u2014\u2212])?   # a sign, where nothing is subtracted from
    (?:\\?[$€£]\s?)?
    (?:[-+\u2212](?=\\?[d t]?frac|[\d.]))?
    (?:
      \d*\\[dt]?frac\s*(?:\{[^{}]*\}\s*\{[^{}]*\}|\d\s*\d)
      | (?:[1-9]\d{0,2}(?:(?:[,'\u2019_\u202f\u00a0 ]|\{,\}|\\[,; ])\d{3})+(?!\d)|\d+)(?:\.\d+)?
        (?:\s?/\s?\d+(?![\d/]))?
      | \.\d+
    )[\u00bc-\u00be]?
    (?!\d|[.:/]\d)
    (?:\s?\\?%|\s(?:percent|hundred|thousand|million|billion|trillion|dozen)\b)?
    """,
    re.VERBOSE,
)
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b|[.)]\s", re.IGNORECASE)

_PHRASE = re.compile(
    r"""
    (?:
      \banswer\b[*_]{0,3}
      (?:\s(?:to|for|of)\b[^.\n:=]{0,100}?)?
      \s?[*_]{0,3}
      (?P<says>(?:\s|\b)(?:is|was|equals|would\sbe|should\sbe|must\sbe)\b|=|:)
      | (?:\u7b54\u6848|\u7b54\u3048|\uc815\ub2f5)[^\W\d_\uff1a]{0,2}[:\uff1a]?
      | \b(?:antwort|respuesta|r\u00e9ponse|resposta|risposta|\u043e\u0442\u0432\u0435\u0442)\b
        (?:\s(?:ist|lautet|es|est|\u00e9|\u00e8)\b:?|:)
    )
    [*_]{0,3}\s?:?[*_]{0,3}[^\S\n]*
    """,
    re.VERBOSE | re.IGNORECASE,
)
_JSON = re.compile(
    r'"(?:final_?\s?)?answer"\s*:\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,}"]+))', re.IGNORECASE
)
_MATH_SPAN = re.compile(
    r"\s*(?:\$\$(?P<a>.+?)\$\$|\\\[(?P<b>.+?)\\\]|\\\((?P<c>.+?)\\\)"
    r"|\$(?P<d>(?=\S)[^$\n]*?(?<=\S))\$(?![\d]))",
    re.DOTALL,
)
_BOLD = re.compile(r"\s*(?:\*\*|__)(?P<inside>[^*_\n]+?)(?:\*\*|__)")
_SENTENCE_END = re.compile(
    r"(?<=[^\W\d_])(?<!\bSt)(?<!\bMt)(?<!\bDr)(?<!\bMr)\.(?=\s|$)|(?<=[\d)%$}*\]])\.(?=\s|$)"
    r"|(?<![\\\d])!(?=\s|$)|(?<=\d)!(?=\s*$|\s+[A-Z])|(?<!\\)[?;](?=\s|$)|\n|\u3002"
)
_COURTESY = re.compile(
    r"let me know|feel free|hope (?:this|that|it)|if you (?:have|need|want)|happy to help|\?\s*$"
    r"|^\W*(?:note|remark|p\.?\s?s\.?)\b",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"\b(?:I|we)(?:\s?'m|\sam|\sare)?\s(?:can(?:not|\snot|'t)|unable|not\sable|sorry|give\sup"
    r"|do(?:\snot|n't)\s(?:have|know))"
    r"|cannot\sbe\s(?:determined|solved|answered)|not\senough\sinformation",
    re.IGNORECASE,
)
_CORRECTION = re.compile(
    r"(?:^|.*?[.,;\u2014-])\s*"
    r"(?:no|wait|oops|sorry|actually|correction|scratch that|i mean|rather)\b"
    r"(?:[\s,.:\u2014-]|\b(?:no|wait|actually|it is|it's|that is|make that)\b)+",
    re.IGNORECASE | re.DOTALL,
)
_NEGATED = re.compile(
    r"n[o']t\b.*?(?:\bbut\s+(?:rather\s+)?|[.;,]\s+(?:it|the answer|that)(?:\s+is|'s)\s+)(?!not\b)",
    re.IGNORECASE | re.DOTALL,
)
_REASON = re.compile(
    r"[\s,;\u2014]+(?:because|since|as|given|due to|so that|hence|thus)\b.*"
    r"|,?\s+(?:and\s+)?(?:not|rather than|instead of)\b.*"
    r"|(?<=[\w%\"'*)$}])(?<!\\cup)(?<!\\cap)\s+\((?=[^()]*(?:[^\W\d_]{2}|\d\s*[x*=+/\u00d7-]|^\d+$))[^()]*\)\s*$",
    re.IGNORECASE | re.DOTALL,
)
_LEADING = re.compile(
    r"^(?:the|our|my)\s\w+(?:\s\w+)?\s(?:is|was)\s+(?!not\b)(?=(?:[\w'-]+\s?){1,3}\W*$)"
    r"|^.*\b(?:it|they|this|that|option|choice|letter|word|city|name|one)\s(?:is|are|must\sbe)\s+(?!not\b)",
    re.IGNORECASE,
)
_WHICH = re.compile(
    r",?\s+(?:which|that)\s+(?:is|equals|makes|gives|means|comes\sto)\s+(?:equal\s+to\s+)?",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r",\s+(?!and\b|or\b|(?:19|20)\d\d\b)(?=[^\W\d_]{2,}\s|\d+\s+of\b)")
_APPOSITION = re.compile(r",\s+(?=(?:the|a|an|which|who|where|with|it|that)\b)", re.IGNORECASE)


@dataclass(frozen=True)
class StatedAnswer:
    """An answer, the rule behind it, and where it begins."""

    answer: str
    rule: str
    begin: int = 0


def boxes(text: str) -> list[tuple[int, int, str]]:
    r"""Begin, end and content of each complete `\boxed{...}` that is not empty, inner ones too."""
    out = [(box.start(), box.end(), box[1]) for box in _BARE_BOX.finditer(text)]
    open_: list[tuple[int, int | None]] = []  # where what is in a brace begins, and its box
    for brace in _BRACES.finditer(text):
        if brace[0] != "}":
            open_.append((brace.end(), brace.start() if brace[0] != "{" else None))
        elif open_:
            begin, box = open_.pop()
            if box is not None and text[begin : brace.start()].strip():
                out.append((box, brace.end(), text[begin : brace.start()]))
    return sorted(out)


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete box that is not empty; None without one."""
    return every[-1][2] if (every := boxes(text)) else None


def spoken(text: str) -> str:
    """A text without its thinking, struck words, and the chat's tokens."""
    left = re.sub(r"~~[^~\n]*~~", "", state_of(text).spoken)
    return _SPECIAL.sub("", left)


def turns(text: str) -> list[str]:
    """What is spoken before a question that a text goes on with, and all that is spoken."""
    first = spoken(_NEXT_TURN.split(state_of(text).spoken, maxsplit=1)[0])
    return [first, whole] if first.strip() and first != (whole := spoken(text)) else [spoken(text)]


def boxed(text: str, several: bool = False) -> StatedAnswer | None:
    """The last box of a text, or the last before a question that it goes on with."""
    return next((box for part in turns(text) if (box := _in_box(part, several))), None)


def _in_box(text: str, several: bool) -> StatedAnswer | None:
    r"""The last box; where several answers are accepted together, those that stand together."""
    every = boxes(text)
    if not every:
        return None
    last = [every[-1]]
    for before, behind in pairwise(reversed(every)):
        between = text[behind[1] if behind[1] <= before[0] else before[0] : before[0]]
        if not several or behind[1] > before[0] or not _TOGETHER.fullmatch(between):
            break
        last.insert(0, behind)
    if len(last) == 1 or any(read(box[2]).members for box in last):
        return StatedAnswer(every[-1][2], "the last \\boxed{}", every[-1][0])
    return StatedAnswer(", ".join(box[2] for box in last), "the last boxes", every[-1][0])


def _in_tags(text: str) -> StatedAnswer | None:
    """The text between the last complete `<answer>` and `</answer>`."""
    before, closed, _ = text.rpartition("</answer>")
    _, opened, inside = before.rpartition("<answer>")
    return StatedAnswer(inside.strip(), "the last <answer></answer>") if closed and opened else None


def _behind_hashes(text: str, numeric: bool, ended: bool) -> StatedAnswer | None:
    """What follows the last `####` on its line, which has to be over; no heading."""
    begin, lines = 0, []
    for line in text.split("\n"):
        lines.append((begin, line))
        begin += len(line) + 1
    lines = [line for line in (lines if ended else lines[:-1]) if line[1].strip()]
    for begin, line in reversed(lines if numeric else lines[-1:]):
        _, hashes, behind = line.rpartition("####")
        if hashes and behind.strip() and "#" not in behind and (not numeric or _readable(behind)):
            return StatedAnswer(behind.strip(), "the last ####", begin)
    return None


def _by_phrase(text: str, kind: str) -> StatedAnswer | None:
    """What the last "the answer is", "Answer:" or key `answer` says, where it says one."""
    rule = 'the last "answer is"'
    for phrase in reversed([*_PHRASE.finditer(text)][-_PHRASES:]):
        at_once = phrase["says"] in (":", "=")
        stated = _stated(text[phrase.end() :][:_NEAR], kind == "number", at_once)
        if stated is not None:
            return StatedAnswer(_narrowed(stated, kind), rule, phrase.start())
    keys = [*_JSON.finditer(text)]
    return StatedAnswer(keys[-1][1] or keys[-1][2], 'the key "answer"') if keys else None


def _readable(text: str) -> bool:
    """Whether a text is a number, a list of several, or a relation, whatever it is equal to."""
    reading = read(text.strip())
    return bool(reading.values or reading.members or reading.parts[1])


def _stated(rest: str, numeric: bool, at_once: bool) -> str | None:
    """The answer that a text begins with; `at_once`: with nothing before it."""
    rest = rest.lstrip()
    if re.match(r"n[o']t\b", rest):
        negated = _NEGATED.match(rest)
        if negated is not None:
            return _stated(rest[negated.end() :], numeric, at_once)
        denied = _SENTENCE_END.split(rest, maxsplit=1)[0]
        return denied if numeric and _readable(denied) else None
    span = _MATH_SPAN.match(rest)
    behind = "" if span is None else re.split(r"[.\n]", rest[span.end() :], maxsplit=1)[0]
    if span is not None and not re.match(r"\s*(?:\\?[$\d]|or\b|and\b|[-+*/^=x])", behind):
        unit = behind if re.fullmatch(r"\s*[^\W\d_]+\s*", behind) else ""
        return next(group for group in span.groups() if group is not None).strip() + unit
    bold = _BOLD.match(rest)
    if bold is not None and (not numeric or _readable(bold["inside"])):
        return bold["inside"].strip()
    end = _SENTENCE_END.search(rest)
    sentence, after = (rest, "") if end is None else (rest[: end.start()], rest[end.end() :])
    if (again := _CORRECTION.match(after)) and again.start() == 0 and len(again[0]) < 40:
        sentence = after[again.end() :].split("\n")[0]
        return _stated(sentence, numeric, at_once)
    again = None if re.match(r"\W*no\b", sentence, re.IGNORECASE) else _CORRECTION.match(sentence)
    if again and sentence[again.end() :].strip():
        sentence = sentence[again.end() :]
    sentence = sentence.strip(" *_`\"'\u201c\u201d")
    if not numeric:  # emphasis that began before the phrase ends with the answer
        sentence = _REASON.sub("", sentence.partition("**")[0])
        return (
            _APPOSITION.split(sentence, maxsplit=1)[0].strip(" \"'\u201c\u201d").rstrip(".") or None
        )
    return _numeric(sentence, at_once)


def _numeric(sentence: str, at_once: bool) -> str | None:
    """What a sentence says where a number is wanted: the whole of it, or None; never a part."""
    *before, last = _WHICH.split(sentence)
    if before:
        sentence = before[0] if _NUMBER.fullmatch(before[0].strip()) else last
    sentence = _CLAUSE.split(_REASON.sub("", sentence), maxsplit=1)[0].strip(" *_").rstrip(".")
    if _CHANGING.match(sentence):
        return sentence
    first = next(_numbers(sentence), None)
    begins = bool(first) and sentence.startswith(first or "")
    if _readable(sentence) and (begins or not at_once or not re.match(r"[A-Za-z]{2}", sentence)):
        return sentence
    return sentence if begins and not (at_once and "=" in sentence) else None


def _last_line(text: str, kind: str) -> StatedAnswer | None:
    """The last line, where it is short: an output may be its answer alone."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if not lines or len(lines[-1]) > 100 or _COURTESY.search(lines[-1]):
        return None
    line = bare(_LEADING.sub("", lines[-1]).strip("*_ "))
    return StatedAnswer(_narrowed(line, kind), "the last line")


_OTHER = (
    "half|twice|thrice|double|triple|quadruple|thirds?|quarters?|fifths?|reciprocal|inverse|square"
    "|cube|root|under|over|below|above"
)
_FUNCTION = r"(?:\\?(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt)\b|[√∛∜]|\b[a-z](?=\())"
#: What makes another number of the one behind it, at the beginning and right before it.
_CHANGING = re.compile(
    rf"\W*(?:(?:a|an|one|two|three|the)\s)?\s*(?:{_FUNCTION}|(?:{_OTHER})\b)", re.IGNORECASE
)
_CHANGED = re.compile(rf"(?:{_FUNCTION}[{{(\s]*|\b(?:{_OTHER})\s+(?:of\s+)?|[<>≤≥]\s*)$", re.I)
#: What makes of the number behind it none of the answer.
_DEMOTED = re.compile(
    r"\b(?:(?:the|these|those|all|his|her|their|its|per|every|than|within)\s+(?:\w+'s\s+)?"
    r"|(?:in|by|since|until|of)\s+(?=(?:19|20)\d\d\b(?!\s+[a-z]))"
    r"|at\s+(?=\\?[$€£]?[\d.,]+\s+(?:each|apiece|per)\b)"
    r"|\d+\s+(?:[a-z]+\s+)?(?:out\s+of|of)\s+(?:the\s+)?)",
    re.IGNORECASE,
)


def _last_number(text: str) -> StatedAnswer | None:
    """The last number of a text, or the only one in bold of its sentence; none of a refusal."""
    text = re.sub(r"(?<=[\w.!%])\s+(?:\([^()\n]*\)|\[[^][\n]*\])", "", text)
    ends = [0, *(end.end() for end in _SENTENCE_END.finditer(text)), len(text)]
    sentences = [text[begin:end] for begin, end in pairwise(ends)]
    own = [part for part in sentences if part.strip() and not _COURTESY.search(part.strip())]
    if not own or _REFUSAL.search(own[-1]):
        return None
    for sentence in (part[-_NEAR:] for part in reversed(own)):
        numbers = [*_matches(sentence)]
        if not numbers:
            continue
        inside = [match["inside"] for match in _BOLD.finditer(sentence)]
        strong = [number for part in inside for number in [*_numbers(part)][-1:]]
        if len(strong) == 1:
            return StatedAnswer(strong[0], "the last number")
        if "=" in sentence and read(sentence).values:
            return StatedAnswer(sentence.strip(), "the last number")
        chain = re.match(r"\s*(\S+)\s*=\s*[^=]*$", sentence)
        if chain and _NUMBER.fullmatch(chain[1]):
            return StatedAnswer(chain[1], "the last number")
        aside = {match.end() for match in _DEMOTED.finditer(sentence)}
        main = [number for number in numbers if number.start() not in aside]
        last = (main or numbers)[-1]
        changed = _CHANGED.search(sentence[: last.start()])
        whole = _whole(last, sentence) if changed is None else sentence.strip()
        return StatedAnswer(whole, "the last number")
    return None


_OPERATOR = r"\s?(?:[\u00d7\u00b7*/^+]|\bx\b|x(?=\d)|\bor\b|\\times|\\cdot)\s?"
_BEHIND = re.compile(
    rf"(?:{_OPERATOR}[-\d.^{{}}\u00b2\u00b3]*\d\}}?|[\u00b2\u00b3\u03c0]|\\pi|\s?\u221a\d+)*"
)
_BEFORE = re.compile(rf"(?:[\d.^{{}}\u00b2\u00b3]+{_OPERATOR})*$")


def _whole(number: re.Match[str], sentence: str) -> str:
    """The expression that a number is part of."""
    behind = _BEHIND.match(sentence, number.end())
    before = _BEFORE.search(sentence[: number.start()])
    begin = number.start() if before is None else before.start()
    return sentence[begin : number.end() if behind is None else behind.end()].strip()


def _numbers(text: str) -> Iterator[str]:
    return (match[0].strip() for match in _matches(text))


def _matches(text: str) -> Iterator[re.Match[str]]:
    """Each number of a text as it is typed, but for ordinals and numbers of a list."""
    for number in _NUMBER.finditer(text):
        begins = not text[: number.start()].strip()
        behind = _ORDINAL.match(text, number.end())
        if behind is not None and (begins or behind[0][0] not in ".)"):
            if begins and behind[0][0] in ".)" and not text[behind.end() :].strip():
                yield number  # "72." is all there is
            continue
        yield number


def find(
    text: str, gold: str | None, ended: bool, several: bool = False, marks_alone: bool = False
) -> StatedAnswer | None:
    """The answer of an output: what is marked or stated last, else the last line or number.

    The part before a question that the output goes on with is looked at first.

    Args:
        gold: the right answer, of which the kind alone counts; None for a text of any kind.
        ended: whether the text ended by itself.
        several: whether boxes that stand together are one answer.
        marks_alone: no last line and no last number.
    """
    kind = "words" if gold is None else kind_of(gold)
    numeric, parts = kind == "number", turns(text)
    for part in parts:
        if tagged := _in_tags(part):
            return tagged
        marks = [_in_box(part, several), _behind_hashes(part, numeric, ended)]
        marks += [_by_phrase(part, kind)] if ended else []
        stated = [mark for mark in marks if mark is not None]
        if stated:
            return max(stated, key=lambda mark: mark.begin)
    if not ended or marks_alone:
        return None
    line = _last_line(parts[0], kind)
    if not numeric or (line and read(line.answer).values and not read(line.answer).words):
        return line
    return _last_number(parts[0])


_OPTION = re.compile(r"(?<![\w'])(?!A\s(?!and\b|or\b|is\b)[a-z])\(?([A-H])\)?(?![\w'])")
_DENIED = re.compile(r"n't\b|not\b|\b(?:instead|rather|incorrect|wrong|false)\b", re.IGNORECASE)


def _narrowed(statement: str, kind: str) -> str:
    """The only option of a statement, or the yes or no that it begins with; else all of it."""
    first = re.match(r"\W*(yes|no|true|false)\b", statement, re.IGNORECASE)
    if kind == "yes or no" and first:
        return first[1]
    options: set[str] = set(_OPTION.findall(statement))
    if kind == "option" and len(options) == 1 and not _DENIED.search(statement):
        return options.pop()
    return statement


def bare(text: str) -> str:
    """An answer without the signs of mathematics, emphasis and the full stop around it."""
    left = text.strip()
    for before, behind in (("**", "**"), ("`", "`"), ("\\(", "\\)"), ("\\[", "\\]"), ("$", "$")):
        if left.startswith(before) and left.endswith(behind) and len(left) > len(before + behind):
            left = left[len(before) : -len(behind)].strip()
    return left.removesuffix(".")
