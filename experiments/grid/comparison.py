"""Whether two answers are the same: the rules in their order, each with what it compares."""

from __future__ import annotations

import functools
import re
from calendar import month_abbr, month_name
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from experiments.grid import mathematics
from experiments.grid.numbers import BASED, CHANGING, WORD, exact, plain, words_of

#: Digits that a decimal needs to stand for a number that it is not, and those of a float.
DIGITS, FLOAT = 6, 15
#: Characters of an answer that is read; a longer one is a text.
LONGEST = 1000


@dataclass(frozen=True)
class Comparison:
    """Whether two answers are the same, None where only math-verify could say, by which rule."""

    same: bool | None
    rule: str


@dataclass(frozen=True)
class Reading:
    """An answer as it is typed and in one spelling."""

    typed: str
    text: str

    @functools.cached_property
    def words(self) -> tuple[str, ...]:
        return words_of(self.text)

    @functools.cached_property
    def bare(self) -> str:
        """What is left without the words at both ends."""
        return WORD.sub("\ue004", self.text).strip("\ue004,")

    @functools.cached_property
    def key(self) -> str:
        """The text with its words in small letters."""
        return WORD.sub(lambda m: m[1].casefold(), self.text).strip("'\"")

    @functools.cached_property
    def number(self) -> Fraction | None:
        changed = not CHANGING.isdisjoint(self.words) or "\ue004" in self.bare
        return None if changed else exact(self.bare.removesuffix("%"))

    @functools.cached_property
    def values(self) -> frozenset[Fraction]:
        """The number that it is; a percentage is two, 25 and 0.25."""
        if self.number is None:
            return frozenset()
        return frozenset([self.number, self.number / (100 if self.bare.endswith("%") else 1)])

    @functools.cached_property
    def places(self) -> int | None:
        """Digits behind the point of a decimal that may stand for a number it is not."""
        digits = re.fullmatch(r"-?(\d*)\.(\d+)", self.bare)
        size = len((digits[1] + digits[2]).lstrip("0")) if digits else 0
        return len(digits[2]) - max(0, size - FLOAT) if digits and size >= DIGITS else None

    @functools.cached_property
    def parts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The parts between the relations, and these."""
        return _split(self.text, _RELATION)

    @functools.cached_property
    def members(self) -> Members | None:
        return _members(self.text)


@dataclass(frozen=True)
class Members:
    """Members of a list and what is around them: one of `([{<`, or nothing."""

    bracket: str
    items: tuple[str, ...]


_RELATION = re.compile(r"\\(?:le|ge|ne|equiv)(?![a-z])|[<>=]")
_BETWEEN = re.compile("[,;]?\ue000(?:and|or)\ue001|[,;]", re.IGNORECASE)
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
_NAME = re.compile(
    r"(?![a-z]{2})[^-+*/^\d\ue000\\{,][^-+*/^{,]*|\\(?!frac|sqrt)[^-+*/^,]*"
    "|(?:\ue000[^\ue001]*\ue001)+|\\([a-z](?:,[a-z])*\\)"
)
_OF_X = re.compile(r"y|[a-zA-Z]\(x\)")
_SET_OF = re.compile(r"\\\{[A-Za-z](?:\\in[^|:\\]*(?:\\mathbb(?:\{R\}|R))?)?(?:\\mid|\||:)(.*)\\\}")
_OUTER = (
    (re.compile(r"\((.*)\)", re.DOTALL), "("),
    (re.compile(r"\[(.*)\]", re.DOTALL), "["),
    (re.compile(r"\\\{(.*)\\\}", re.DOTALL), "{"),
    (re.compile(r"(?:\\langle|<(?=[^<>]*,))(.*)(?:\\rangle|>)", re.DOTALL), "("),
    (re.compile(r"\\begin\{[pb]matrix\}(.*)\\end\{[pb]matrix\}", re.DOTALL), "("),
)


@functools.lru_cache(maxsize=1 << 14)
def read(answer: str) -> Reading:
    """An answer in one spelling, without a sign of approximation and a set that it is in."""
    if len(answer) > LONGEST:
        return Reading(answer, answer)
    text = re.sub(r"^(?:\\approx|=|\\therefore|\\Rightarrow)", "", plain(answer))
    text = re.sub(r"^[A-Za-z]\\in(?![a-z])|\\approx", lambda m: "=" if "app" in m[0] else "", text)
    return Reading(answer, _SET_OF.sub(r"\1", text).lstrip("="))


def _split(text: str, at: re.Pattern[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A text cut at what is in no bracket, and the cuts."""
    parts, cuts, depth, begin = [], [], 0, 0
    stops = re.compile(
        rf"(?P<open>\\?[{{(\[]|\\langle|\\begin)|(?P<close>\\?[}})\]]|\\rangle|\\end)|{at.pattern}"
    )
    for stop in stops.finditer(text):
        if stop["open"] or stop["close"]:
            depth += 1 if stop["open"] else -1
        elif depth == 0:
            parts.append(text[begin : stop.start()].strip())
            cuts.append(stop[0])
            begin = stop.end()
    return (*parts, text[begin:].strip()), tuple(cuts)


def _members(text: str) -> Members | None:
    """The members of a list, each as it is typed; None where it has but one."""
    bracket, inside = "", text
    for outer, kind in _OUTER:
        match = outer.fullmatch(text)
        if match and _closes_last(text):
            bracket, inside = kind, match[1]
            break
    if "\\begin" in text and bracket:
        inside = ",".join(f"({row})" if "&" in row else row for row in inside.split("\\\\") if row)
        inside = inside.replace("&", ",")
    items = [item for item in _split(inside, _BETWEEN)[0] if item]
    items = [signed for item in items for signed in _both_signs(item)]
    if len(items) < 2 and bracket != "{":
        return None
    return Members(bracket, tuple(items))


def _closes_last(text: str) -> bool:
    """Whether the first bracket of a text is closed by the last."""
    depth = 0
    for brace in re.finditer(r"[\[({]|[\])}]|\\begin|\\end|\\[lr]angle", text):
        depth += 1 if brace[0] in ("[", "(", "{", "\\begin", "\\langle") else -1
        if depth == 0:
            return brace.end() == len(text) or brace[0] == "\\end"
    return text.startswith("<")


def _both_signs(item: str) -> list[str]:
    if "\\pm" not in item:
        return [item]
    return [re.sub(r"\\pm", sign, item).lstrip("+") for sign in "+-"]


def _matched(answers: Sequence[str], golds: Sequence[str], ordered: bool) -> bool | None:
    """Whether each has its own partner; in no order the first that fits is taken."""
    if len(answers) != len(golds):
        return False
    unknown, left = False, list(golds)
    for answer in answers:
        verdicts = [compare(answer, gold).same for gold in (left[:1] if ordered else left)]
        if True in verdicts:
            left.pop(verdicts.index(True))
        elif None not in verdicts:
            return False
        else:
            unknown = True
            left.pop(verdicts.index(None))
    return None if unknown else True


# The rules: True, False, or None where a rule does not apply


def _as_text(a: Reading, g: Reading) -> bool | None:
    return True if a.key == g.key or a.typed.strip() == g.typed.strip() else None


def _as_option(a: Reading, g: Reading) -> bool | None:
    labelled = re.match(r"\([A-H]\)(?=.*\d)", a.text)
    if labelled and g.values:
        return compare(a.text[labelled.end() :], g.text).same
    letter = re.fullmatch(r"\(?([A-Z])\)?[.):]?", g.key.upper() if len(g.key) > 1 else g.key)
    if letter is None:
        return None
    begins = r"(?i:option|choice|answer)?[(\[]?([A-Z])(?:$|[).:\]](?!\d*\)))"
    option = re.match(begins, re.sub("[\ue000\ue001]", "", a.text))
    if option is None and letter[1] in "ABCDEFGH":
        option = re.fullmatch(r"\(?([a-h])\)?", a.key)
    return None if option is None else option[1].upper() == letter[1]


_CLOCK = re.compile(r"(\d{1,2})(?::(\d\d))?(?:[ap]m)?|noon|midnight")


def _as_time(a: Reading, g: Reading) -> bool | None:
    times = []
    for key in (a.key, g.key):
        match = _CLOCK.fullmatch(key)
        if match is None or not (match[2] or key.endswith(("m", "noon", "night"))):
            return None
        half = {"a": 0, "p": 720}.get(key[-2:-1]) if key.endswith("m") else None
        hour, minute = (int(match[1]), int(match[2] or 0)) if match[1] else (12, 0)
        half = {"noon": 720, "midnight": 0}.get(key, half)
        if half is not None and hour <= 12:
            hour %= 12
        times.append((hour * 60 + minute + (half or 0), half if half is not None else hour > 12))
    (first, known), (second, also) = times
    if known is False or also is False:  # a clock of twelve hours
        return first % 720 == second % 720
    return first == second


_MONTHS = {name.lower(): at for names in (month_name, month_abbr) for at, name in enumerate(names)}
_MONTH = "|".join(sorted(filter(None, _MONTHS), key=len, reverse=True))
_DATE = re.compile(
    rf"(?P<m>{_MONTH})\b\.?\s*(?P<d>\d{{1,2}})(?:st|nd|rd|th)?\b(?:,?\s*(?P<y>\d{{4}}))?"
    rf"|(?P<d2>\d{{1,2}})(?:st|nd|rd|th)?\s*(?:of\s+)?(?P<m2>{_MONTH})\b,?\s*(?P<y2>\d{{4}})?"
    r"|(?P<y3>\d{4})-(?P<m3>\d\d)-(?P<d3>\d\d)"
)


def _as_date(a: Reading, g: Reading) -> bool | None:
    dates: list[tuple[int, int, str | None]] = []
    for reading in (g, a):
        text = re.sub(r"\\text\w*|[{}\\]", " ", reading.typed).casefold()
        match = _DATE.search(text)
        if match is None:
            return False if dates and a.values else None
        parts = {name[0]: value for name, value in match.groupdict().items() if value}
        month = int(_MONTHS.get(parts["m"]) or parts["m"])
        dates.append((month, int(parts["d"]), parts.get("y")))
    (*day, year), (*other, second) = dates
    return day == other and (year == second or None in (year, second))


def _as_number(a: Reading, g: Reading) -> bool | None:
    comma = re.compile(r"-?\d+,\d+")
    for answer, other in ((a, g), (g, a)):  # a comma for a point, where the other has one
        if comma.fullmatch(answer.text) and "." in other.bare and other.number is not None:
            return exact(answer.text.replace(",", ".")) == other.number
    if thousands := re.fullmatch(r"(\d+(?:\.\d+)?)k", a.text):
        return Fraction(thousands[1]) * 1000 in g.values if g.values else None
    based = BASED.fullmatch(g.bare)
    if based and a.bare == based[1]:
        return True
    if not a.values or not g.values:
        return None
    if a.bare.endswith("%") and g.bare.endswith("%"):
        same = a.number == g.number
    else:
        same = not a.values.isdisjoint(g.values) or _rounded(a, g) or _rounded(g, a)
    return same and _fit(a, g)


def _rounded(decimal: Reading, other: Reading) -> bool:
    """Whether a decimal is a fraction without an end, cut or rounded."""
    if decimal.places is None or "." in other.bare or decimal.number is None:
        return False
    number = other.number or Fraction(0)
    over = (abs(number) - abs(decimal.number)) * 10**decimal.places
    return number.denominator > 1 and number * decimal.number > 0 and -1 <= 2 * over < 2


def _fit(a: Reading, g: Reading) -> bool:
    """Whether the words go together: where both have some, one's are among the other's."""
    first, second = set(a.words), set(g.words)
    return not first or not second or first <= second or second <= first


_INFINITE = re.compile(r"\\infty|\\cup|\\mathbb(?:\{R\}|R)")
_VARIABLE = re.compile(r"[A-Za-z](?:\([a-z]\))?|\\[a-z]+")
_OR = re.compile("\\\\cup(?![a-z])|\\\\lor(?![a-z])|,?\ue000(?:or|OR)\ue001")
_AND = re.compile("\\\\land(?![a-z])|,?\ue000and\ue001")
_COMMA = re.compile(",")
_ABSOLUTE = re.compile(r"(?:\||\\lvert)([A-Za-z])(?:\||\\rvert)(<|\\le(?![a-z]))(.*)")


class Span(NamedTuple):
    """An interval: its brackets, its ends, and what lies in it where that has a name."""

    brackets: str
    low: str
    high: str
    name: str = ""


def _as_interval(a: Reading, g: Reading) -> bool | None:
    if not any(_INFINITE.search(reading.text) or reading.parts[1] for reading in (a, g)):
        return None
    first, second = (sorted(_spans(reading.text)) for reading in (a, g))
    if not first or not second:
        return None
    return len(first) == len(second) and all(
        x.brackets == y.brackets
        and (x.name == y.name or not (x.name and y.name))
        and compare(x.low, y.low).same
        and compare(x.high, y.high).same
        for x, y in zip(first, second, strict=True)
    )


def _spans(text: str) -> list[Span]:
    """The intervals of a union; none where a part is no interval."""
    spans = []
    for part in _split(text, _OR)[0]:
        pieces = [_span(piece) for piece in _split(part, _AND)[0]]
        both = [piece for piece in pieces if piece is not None]
        if len(both) < len(pieces) or len(both) > 2:
            return []
        if len(both) == 2:  # "x > 1 and x < 4"
            right, left = sorted(both, key=lambda span: span.low != r"-\infty")
            if (right.low, left.high, right.name) != (r"-\infty", r"\infty", left.name):
                return []
            brackets = left.brackets[0] + right.brackets[1]
            both = [Span(brackets, left.low, right.high, left.name)]
        spans += both
    return spans


def _span(part: str) -> Span | None:
    part = _ABSOLUTE.sub(r"-\3\2 \1\2 \3", re.sub(r"^[A-Za-z]\\in", "", part))
    if part in (r"\mathbb{R}", r"\mathbbR"):
        return Span("()", r"-\infty", r"\infty")
    if bracket := re.fullmatch(r"([(\[])(.*)([)\]])", part):
        inside = [end.replace(r"+\infty", r"\infty") for end in _split(bracket[2], _COMMA)[0]]
        return Span(bracket[1] + bracket[3], *inside) if len(inside) == 2 else None
    ends, ops = map(list, _split(part, _RELATION))
    if set(ops) <= {">", r"\ge"}:
        ends, ops = ends[::-1], [_FLIPPED[op] for op in ops[::-1]]
    if len(ops) == 1 and _VARIABLE.fullmatch(ends[0]):
        ends, ops = [r"-\infty", *ends], ["<", *ops]
    elif len(ops) == 1 and _VARIABLE.fullmatch(ends[1]):
        ends, ops = [*ends, r"\infty"], [*ops, "<"]
    if len(ops) != 2 or not set(ops) <= {"<", r"\le"}:
        return None
    low = "[" if ops[0] == r"\le" and ends[0] != r"-\infty" else "("
    high = "]" if ops[1] == r"\le" and ends[2] != r"\infty" else ")"
    return Span(low + high, ends[0], ends[2], ends[1])


def _as_relation(a: Reading, g: Reading) -> bool | None:
    (left, ops), (gold_left, gold_ops) = a.parts, g.parts
    if not ops and not gold_ops:
        return None
    if (len(left) > 1 and a.members and not a.members.bracket) or (
        g.members and not g.members.bracket
    ):
        return None  # several equations
    if set(gold_ops) <= {"="} and set(ops) <= {"="}:
        return _as_equation(a, g)
    if not ops or not gold_ops:
        return False
    if len(ops) == len(gold_ops) == 1:
        return _as_inequality(left, ops[0], gold_left, gold_ops[0])
    same_ops = ops == gold_ops
    return same_ops and all(compare(x, y).same for x, y in zip(left, gold_left, strict=True))


def _as_inequality(
    left: Sequence[str], op: str, gold_left: Sequence[str], gold_op: str
) -> bool | None:
    if "" in left or "" in gold_left:  # what is compared has no name
        sides = []
        for (first, second), sign in ((left, op), (gold_left, gold_op)):
            named = not first or _NAME.fullmatch(first)
            sides.append((sign, second) if named else (_FLIPPED.get(sign, sign), first))
        return sides[0][0] == sides[1][0] and compare(sides[0][1], sides[1][1]).same
    return mathematics.same_relation((left[0], op, left[1]), (gold_left[0], gold_op, gold_left[1]))


def _as_equation(a: Reading, g: Reading) -> bool | None:
    left, gold_left = a.parts[0], g.parts[0]
    if len(left) > 1 and len(gold_left) == 1:
        value = _value_of(left)
        return False if value is None else compare(value, g.text).same
    if len(left) == 1:
        if not _NAME.fullmatch(gold_left[0]):
            return False
        return compare(a.text, gold_left[-1]).same
    named, gold_named = _name_and_value(left), _name_and_value(gold_left)
    if named and gold_named:
        (name, value), (gold_name, gold_value) = named, gold_named
        if name == gold_name or (_OF_X.fullmatch(name) and _OF_X.fullmatch(gold_name)):
            return compare(value, gold_value).same
        if "\ue000" in name + gold_name:
            return compare(value, gold_value).same and _fit(read(name), read(gold_name))
        if read(value).values and read(gold_value).values:
            return False
    return mathematics.same_relation((left[0], "=", left[-1]), (gold_left[0], "=", gold_left[-1]))


def _name_and_value(sides: Sequence[str]) -> tuple[str, str] | None:
    if _NAME.fullmatch(sides[0]):
        return sides[0], sides[-1]
    return (sides[-1], sides[0]) if _NAME.fullmatch(sides[-1]) else None


def _value_of(sides: Sequence[str]) -> str | None:
    """What an equation gives for what it names; None where it is one in variables."""
    if named := _name_and_value(sides):
        return named[1]
    numbers = ["\ue000" in side or read(side).number is not None for side in sides]
    sum_ = re.fullmatch(r"[A-Za-z](?:\+[A-Za-z])+", sides[0])
    sum_ = sum_ if sides[-1] != "0" else None
    return sides[-1] if numbers[0] or sum_ or (len(sides) > 2 and all(numbers[1:])) else None


def _as_list(a: Reading, g: Reading) -> bool | None:
    answers, golds = a.members, g.members
    if golds is None:
        return False if answers is not None and g.values else None
    if answers is None:
        return False if a.values or golds.items else None
    kinds = {answers.bracket, golds.bracket}
    if "" not in kinds and len(kinds) > 1 and ("{" in kinds or len(golds.items) == 2):
        return False
    ordered = golds.bracket in ("(", "[")
    items, gold_items = answers.items, golds.items
    if ordered and all(_split(item, _RELATION)[1] == ("=",) for item in items):
        items = tuple(sorted(items))
    return _matched(items, gold_items, ordered)


def _as_words(a: Reading, g: Reading) -> bool | None:
    """Where gold has words alone, or is one letter."""
    if not is_words(g):
        return False if len(g.key) == 1 and g.key.isalpha() and a.key.isalpha() else None
    return bool(g.words) and _spelt(a) == _spelt(g) and not re.search(r"\d", a.bare)


def _spelt(reading: Reading) -> list[str]:
    spelt = [word.casefold().strip(".") for word in WORD.findall(reading.text)]
    return [word for word in spelt if word not in ("the", "a", "an", "on")]


def is_words(g: Reading) -> bool:
    """Whether an answer is words alone: letters without a sign between them, or a sentence."""
    bare = WORD.sub("", g.text)
    letters = re.fullmatch(r"[A-Z]{2,}|[A-Za-z]{3,}|[^\W\d_]*[^\x00-\x7f]\w*|[^\w\\]*", bare)
    return bool(letters) or (bool(g.words) and not re.search(r"[\\^_={}<>\d]", bare))


def _as_mathematics(a: Reading, g: Reading) -> bool | None:
    left, right = (_unworded(reading) for reading in (a, g))
    if g.values and not re.search(r"[A-Za-z]", left):
        return False
    if not left or not right or not _fit(a, g):
        return False
    if exact(left) is not None and exact(right) is not None:
        return None
    if a.places is None and g.places is not None:
        left, right = right, left
    return mathematics.same(left, right, g.places if a.places is None else a.places)


def _unworded(reading: Reading) -> str:
    """The mathematics of an answer: without units behind it, other words as they are."""
    left = re.sub("(?:\ue000[^\ue001]*\ue001)+$", "", reading.text)
    return re.sub("[\ue000-\ue004]", "", left)


_MATHEMATICS = "as mathematics (math-verify)"
RULES: tuple[tuple[str, Callable[[Reading, Reading], bool | None]], ...] = (
    ("as typed", _as_text),
    ("as options", _as_option),
    ("as times", _as_time),
    ("as dates", _as_date),
    ("as numbers", _as_number),
    ("as intervals", _as_interval),
    ("as relations", _as_relation),
    ("as lists", _as_list),
    ("as words", _as_words),
)


def kind_of(gold: str) -> Literal["number", "option", "yes or no", "words"]:
    """What an answer is, as far as it helps to find others like it in a text."""
    g = read(gold)
    if g.values:
        return "number"
    if re.fullmatch(r"\(?[A-H]\)?", g.key):
        return "option"
    return "yes or no" if g.key in ("yes", "no", "true", "false") else "words"


def is_known(gold: str) -> bool:
    """Whether answers can be compared with a gold one without math-verify."""
    g = read(gold)
    if g.members:
        return all(map(is_known, g.members.items))
    return bool(g.values) or is_words(g) or re.fullmatch(r"\(?\w\)?", g.key) is not None


@functools.lru_cache(maxsize=1 << 16)
def compare(answer: str, gold: str) -> Comparison:
    """Whether an answer is the gold one, by the first rule that knows."""
    a, g = read(answer), read(gold)
    for name, rule in RULES:
        verdict = rule(a, g)
        if verdict is not None:
            return Comparison(verdict, name)
    if g.values and a.values:
        return Comparison(False, "as numbers")
    return Comparison(_as_mathematics(a, g), _MATHEMATICS)
