r"""What an answer says, in one spelling, and the exact number that it is.

`plain` reads typographic signs, fonts, numerals and units; words stand between marks in it, so that
they are no variables. `exact` computes arithmetic in TeX as a fraction.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction

#: A marked word.
WORD = re.compile("\ue000([^\ue000\ue001]*)\ue001")
#: Bits of the largest number that is computed.
LARGEST = 20_000

_TEX = (
    r"\times \cdot \cdot / \infty \sqrt \le \ge \ne \approx \pm \pi \cup \cap \in \theta "
    r"\langle \rangle \emptyset ^\circ euro pound"
).split()
_SIGNS = str.maketrans(
    {"\u2044": "/", "\u221b": r"\sqrt[3]"}
    | dict.fromkeys("\u2212\u2013\u2014\u2010\u2011", "-")
    | dict.fromkeys("\u2019\u2018", "'")
    | dict.fromkeys("\u00a0\u202f\u2009\u2007\u2005", " ")
    | {sign: f" {tex} " for sign, tex in zip("×⋅·÷∞√≤≥≠≈±π∪∩∈θ⟨⟩∅°€£", _TEX, strict=True)}  # noqa: RUF001
)
_SCRIPTS = {"<super>": "^{%s}", "<sub>": "_{%s}", "<fraction>": r" \frac{%s}"}
_GROUP = r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
_FONTS = (
    "[Ll]arge|LARGE|[Hh]uge|small|ensuremath|boldsymbol|bm|math(?:bf|it|sf|tt)|u(?:nder)?line|emph"
    "|bf|rm|it|tt"
)
_IN_WORDS = re.compile(
    r"\\(?:text(?:bf|it|rm|tt|sf|normal)?|mathrm|mbox|hbox|operatorname\*?)\s*" + _GROUP
)
_UNITS = "km/h|m/s|mph|[cmk]m|[mk]g|ml|mL|ft|in|yd|mi|lbs?|oz|hrs?|min|sec|cents?|[ap]m"
_SHORT = "of|to|is|at|by|on|as|it|if|an|no|he|we|or|up|he"
_FUNCTIONS = "sin|cos|tan|cot|sec|csc|log|ln|exp|arcsin|arccos|arctan|sqrt|frac|max|min|gcd|lcm|mod"
_SPELLINGS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\\(?:tag|label|hspace|vspace)\*?\s*" + _GROUP, ""),
        (r"\\(?:textcolor|colorbox)\s*" + _GROUP + r"\s*" + _GROUP, r"\2"),
        (r"\\color\s*" + _GROUP, ""),
        (rf"\\(?:{_FONTS})\s*" + _GROUP, r"\1"),
        (rf"\\(?:{_FONTS}|displaystyle|textstyle|limits)(?![A-Za-z])", ""),
        (r"\\(?:[dtcs]|nice)frac(?![a-z])", r"\\frac"),
        (r"\\frac\s*([^\s{\\])", r"\\frac{\1}"),
        (r"(\\frac\s*\{(?:[^{}]|\{[^{}]*\})*\})\s*([^\s{\\])", r"\1{\2}"),
        (r"\\sqrt\s*(\d+(?:\.\d+)?|[A-Za-z])", r"\\sqrt{\1}"),
        (r"(\\sqrt\[\d+\])\s*(\w)", r"\1{\2}"),
        (r"(?:\\|(?<![A-Za-z]))sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\.?", ""),
        (r"\\leq(?:slant)?(?![a-z])|<=", r"\\le "),
        (r"\\geq(?:slant)?(?![a-z])|>=", r"\\ge "),
        (r"\\lt(?![a-z])", "<"),
        (r"\\gt(?![a-z])", ">"),
        (r"\\neq|!=", r"\\ne"),
        (r"\\varnothing", r"\\emptyset"),
        (r"\\lbrace", r"\\{"),
        (r"\\rbrace", r"\\}"),
        (r"\\%|(?<=\d)\s*\b(?:percent|per cent)\b", "%"),
        (r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?:s)?(?![a-z])|\\circ(?![a-z])", "\ue000degree\ue001"),
        (r"\ue001\s*([CF])(?![A-Za-z])", "\ue001\ue000\\1\ue001"),
        (r"\\[()\[\]]|\$|\*\*|\\q?quad(?![a-z])", " "),
        (r"(?:\\\\\s*|\\\s*)$", ""),
        (r"(\d)\s*[eE]\s*([-+]?\d+)(?![\w.])", r"\1\\cdot10^{\2}"),
        (r"(?<=\d)\s+x\s*(?=\d)|(?<=\d)x(?=10\^)", r"\\times "),
        (r"\^\s*\(([^()]*)\)", r"^{\1}"),
        (r"\^\s*([-+]?\d+)", r"^{\1}"),
        ("[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]+", lambda m: _marked(m[0])),
        (r"(?<=\d)\s*(?i:([ap])\.?\s?m\b\.?)", lambda m: _marked(m[1] + "m")),
        (rf"(?:(?<=[\d}}])|(?<=\\pi )|(?<=\\pi))\s*({_UNITS})(?![\w/(])", lambda m: _marked(m[1])),
        (r"(?<=\d)\s+([mgshlLJNWVK])(?![\w(^_=+*/-])", lambda m: _marked(m[1])),
        (rf"(?<![\\\w{{^\ue000])(?i:{_SHORT})(?![\w({{])", lambda m: _marked(m[0])),
        (
            rf"(?<![\\A-Za-z\ue000^_/{{])(?<![^\W\d_])(?!(?:{_FUNCTIONS})(?![a-z]))"
            r"([^\W\d_]{3,}(?:[-'][^\W\d_]+)*)(?![\w(_^/\ue001]|\s*=\s*\\)",
            lambda m: _marked(m[1]),
        ),
        (r"\ue001\s*\^\{([23])\}", "\\1\ue001"),
        (r"\(\s*(\ue000[^()]*\ue001)\s*\)", r"\1"),
        (r"\((\w+)\)_", r"\1_"),
        (r"(?<=\s)a(?=\s)|^a(?=\s)", "\ue000a\ue001"),
        (r"(?<![A-Za-z_^}\\\]])\{([^{}\\]*)\}", r"\1"),
        (r"(\\[A-Za-z]+)\s+(?=[A-Za-z])", "\\1\ue003"),
    )
)
_UNWRAPPED = re.compile(
    r"\\text\w*\s*\{\s*((?:(?:at|no|not|less|more|fewer|greater|least|most|than|up|to|is|x)\b\s*)+"
    r"|(?:minus|negative)\s*[\d.]*)\}"
)
_LEAD = re.compile(
    "^[\\s\ue000\ue001]*(?:(?:the|my|our|final|correct|right)[\\s\ue000\ue001]+)*"
    "(?:ans(?:wer)?|result|solution)[\\s\ue000\ue001]*(?:(?:is|are)\\b|:|=)[\\s\ue000\ue001:]*",
    re.IGNORECASE,
)
_SEPARATOR = r"(?:,\\!\s*|\\!,|\{\\?[, ]\}|,|\\[,;: !]|~|['_]| {1,3})"
_THOUSANDS, _THOUSANDS_OF_MEMBERS = (
    re.compile(rf"(?<![\w.,\\}}])([1-9]\d{{0,2}})((?:{separator}\d{{3}})+)(?!,?\d)")
    for separator in (_SEPARATOR, _SEPARATOR.replace("|,|", "|"))
)
_BRACKET = r"[^\w-]*?(?:\\left)?\s*(?:[(\[]|\\\{|\\langle)"
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_NUMERALS = {
    **{word: at for at, word in enumerate(_ONES)},
    **{word: 10 * at for at, word in enumerate(_TENS, start=2)},
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_COUNTS = {"a": 1, **{word: at for at, word in enumerate(_ONES)}, "half": 2, "halve": 2} | {
    part: at for at, part in enumerate(("third", "quarter", "fifth", "sixth"), start=3)
}
_PARTS = re.compile(
    r"(?<![\w-])(a|one|two|three|four|five)[\s-](half|halve|third|quarter|fifth|sixth)s?\b(?!\s+of)",
    re.IGNORECASE,
)
_NUMERAL = "|".join(sorted(_NUMERALS, key=len, reverse=True))
_SPELLED = re.compile(
    rf"(?<![\w\\.-])(?:{_NUMERAL})(?:(?:[\s-]+|\s+and\s+)(?:{_NUMERAL}))*(?![\w-])", re.IGNORECASE
)
_SCALES = {"dozen": 12, "K": 10**3, "M": 10**6, "B": 10**9, "bn": 10**9, "mn": 10**6}
_SCALES |= {"lakh": 10**5, "crore": 10**7}
_SCALED = re.compile(
    r"(?<![\w.])(\d+(?:\.\d+)?)\s*"
    r"(?:(hundred|thousand|million|billion|trillion|dozen|lakh|crore|bn|mn)\b"
    r"|([KMB])(?![\w^(]))"
)
_SPOKEN = (
    (r"\b(?:minus|negative)\s+(?=\S*\d|\\)", "-"),
    (r"(?<=\d)\s+(?:plus)\s+(?=\d)", "+"),
    (r"(?<=\d)\s+(?:times|multiplied by)\s+(?=\d)", r"\\times "),
    (r"(?<=\d)\s+(?:over|divided by)\s+(?=\d)", "/"),
    (r"(?<=\d)\s+squared\b(?!\s)", "^{2}"),
    (r"(?<=\d)\s+cubed\b(?!\s)", "^{3}"),
    (r"(?<=\d)\s+and\s+(?=\d+/\d)", " "),
    (r"\b(?:a|one)\s+dozen\b", "12"),
    (r"^\W*(?:is\s+)?(?:(?:less|fewer|smaller)\s+than|under|below)\b", "<"),
    (r"^\W*(?:is\s+)?(?:(?:more|greater|larger)\s+than|over|above)\b", ">"),
    (r"^\W*(?:at\s+least|(?:not?|never)\s+less\s+than)\b", r"\\ge "),
    (r"^\W*(?:at\s+most|(?:not?|never)\s+more\s+than|up\s+to)\b", r"\\le "),
    (r"^\W*not\s+(?=\S*\d)", r"\\ne "),
)


def _marked(word: str) -> str:
    return f"\ue000{word}\ue001"


def _words_of(match: re.Match[str]) -> str:
    """The text of `\\text{}` with its words marked; a letter alone is a unit behind a number."""
    before = match.string[: match.start()].rstrip(" \\,~;")[-1:]
    inside = re.sub(r"\b([ap])\.\s?m\.", r"\1m", match[1].translate(_SIGNS))
    inside = re.sub(r"(?<!\\)\\ ", " ", inside)
    if re.fullmatch(r"\s*[A-Za-df-hj-z]\s*", inside) and (before.isdigit() or before == "}"):
        return _marked(inside.strip())
    word = r"[^\W\d_]+(?:[-'/][^\W\d_]+)+|[^\W\d_]{2,}"
    return f" {re.sub(word, lambda m: _numeral_or_word(m[0]), inside)} "


def _numeral_or_word(word: str) -> str:
    plain_ = word.lower().split("-")
    keep = all(part in _NUMERALS or part in _SCALES for part in plain_)
    return word if keep or word.lower() in ("percent", "minus") else _marked(word)


def _numeral(match: re.Match[str]) -> str:
    total = value = 0
    for word in re.findall(_NUMERAL, match[0].lower()):
        number = _NUMERALS[word]
        if number < 100:
            value += number
        elif number == 100:
            value = max(value, 1) * 100
        else:
            total, value = total + max(value, 1) * number, 0
    return str(total + value)


def _scaled(match: re.Match[str]) -> str:
    word = match[2] or match[3]
    value = Fraction(match[1]) * (_NUMERALS.get(word) or _SCALES[word])
    return str(value) if value.denominator == 1 else match[0]


def _script(sign: str) -> str:
    kind, _, rest = unicodedata.decomposition(sign).partition(" ")
    if kind not in _SCRIPTS:
        return unicodedata.normalize("NFKC", sign) if kind == "<wide>" else sign
    text = "".join(chr(int(code, 16)) for code in rest.split())
    return _SCRIPTS[kind] % text.replace("\u2044", "}{").translate(_SIGNS)


def plain(text: str) -> str:
    r"""An answer in one spelling, its words marked, thousands unmarked, no spaces but in words."""
    left = re.sub(r"[^\x00-\x7f]", lambda m: _script(m[0]), text.strip()).translate(_SIGNS)
    left = left.replace("}^{", "")
    left = _DOTS.sub(r"\1\\overline{\2}", left)
    left = _UNWRAPPED.sub(r"\1 ", re.sub(r"\\\$|\bUSD\b", " ", left))
    left = _LEAD.sub("", _IN_WORDS.sub(_words_of, _IN_WORDS.sub(_words_of, left)))
    left = re.sub(r"(?:\\\\(?:\[[^\]]*\])?|[.;,:?\s]|(?<=[^\W\d])!)+$", "", left)
    thousands = _THOUSANDS_OF_MEMBERS if re.match(_BRACKET, left) else _THOUSANDS
    left = thousands.sub(lambda m: m[1] + re.sub(r"\D", "", m[2]), left)
    left = _PARTS.sub(lambda m: f"{_COUNTS[m[1].lower()]}/{_COUNTS[m[2].lower()]}", left)
    left = _SCALED.sub(_scaled, _SPELLED.sub(_numeral, _SCALED.sub(_scaled, left)))
    for spoken, sign in _SPOKEN:
        left = re.sub(spoken, sign, left)
    for spelling, new in _SPELLINGS:
        left = spelling.sub(new, left)
    left = re.sub(r"(?<=\d)\s+(?=\d+\s*/\s*\d|\\frac)", "\ue002", left.replace("{,}", ","))
    left = re.sub(r"(?<=\d)(?:\s|\\[,;:! ]|~)+(?=\d)", "\ue003", left)
    left = re.sub(r"(?<!\\)\\[,;:! ]|~|\s+", "", left)
    return re.sub(r"[.;,:?]+$", "", left).replace("\ue003", " ")


_DOTS = re.compile(r"(\d\.\d*?)(\d{1,6}?)\2+(?:\.{3}|\\[lc]?dots|\u2026)(?!\d)")
_REPEATING = re.compile(r"(\d*)\.(\d*)(?:\\(?:overline|bar)\{(\d+)\}|\\dot\{(\d)\}|\((\d+)\))")
_FRACTION = re.compile(r"\\frac\{([^{}]*)\}\{([^{}]*)\}")
#: A number in a base.
BASED = re.compile(r"(\d[0-9A-Z]*|[A-F][0-9A-F]+)_\{?(\d+)\}?")
_TO_PYTHON = (
    (r"(\d+)!", r"factorial(\1)"),
    (r"\\d?binom\{([^{}]*)\}\{([^{}]*)\}", r"comb(\1,\2)"),
    (r"\\sqrt\{([^{}]*)\}", r"(isqrt(\1))"),
    (r"\^\{([^{}]*)\}", r"**(\1)"),
    (r"\\(?:times|cdot|ast)(?![a-z])", "*"),
    (r"\\div(?![a-z])", "/"),
    (r"(?<=[\d)])(?=\(|factorial|comb)|(?<=\))(?=\d)", "*"),
    (r"(?<![\d.\w])0+(?=\d)", ""),
)


def _repeating(match: re.Match[str]) -> str:
    again = match[3] or match[4] or match[5]
    ninths = (10 ** len(again) - 1) * 10 ** len(match[2])
    value = Fraction(int((match[1] or "0") + match[2] + again), 1)
    return f"({value - int((match[1] or '0') + match[2])}/{ninths})"


def exact(text: str) -> Fraction | None:
    """The number that a plain text without words is; None where it is none or too large."""
    left, before = _REPEATING.sub(_repeating, text), None
    if len(left) > 400 or not any(map(str.isdigit, left)):
        return None
    if (based := BASED.fullmatch(left)) is not None:
        base = int(based[2])
        digits = [int(digit, 36) for digit in based[1]]
        if not 2 <= base <= 36 or max(digits) >= base:
            return None
        return Fraction(int(based[1], base))
    left = re.sub(r"(\d+)\ue002(\d+)/(\d+)", r"(\1+\2/\3)", left)
    left = re.sub(r"(?<![\w.])(\d+)\ue002?(\\frac\{\d+\}\{\d+\})", r"(\1+\2)", left)
    while left != before:
        before = left
        left = _FRACTION.sub(r"((\1)/(\2))", left)
        for pattern, new in _TO_PYTHON:
            left = re.sub(pattern, new, left)
    try:
        tree = ast.parse(left.lstrip("+"), mode="eval")
        return _computed(tree.body, left.lstrip("+"))
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError, TypeError):
        return None


_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _computed(node: ast.AST, source: str) -> Fraction:
    match node:
        case ast.Constant(value=int() | float()):
            return Fraction(ast.get_source_segment(source, node) or "")
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value = _computed(operand, source)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _computed(left, source), _computed(right, source)
            if isinstance(op, ast.Pow):
                size = max(abs(a.numerator), a.denominator).bit_length()
                if b.denominator == 1 and abs(b) * size <= LARGEST:
                    return Fraction(a ** int(b))
            elif type(op) in _OPERATORS:
                return _OPERATORS[type(op)](a, b)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _called(name, [_computed(arg, source) for arg in args])
    raise ValueError


def _called(name: str, args: list[Fraction]) -> Fraction:
    if any(arg.denominator != 1 for arg in args) and name != "isqrt":
        raise ValueError
    if name == "isqrt" and args[0] >= 0:
        root = Fraction(math.isqrt(args[0].numerator), math.isqrt(args[0].denominator))
        if root * root == args[0]:
            return root
    if name == "factorial" and 0 <= args[0] <= LARGEST // 8:
        return Fraction(math.factorial(int(args[0])))
    if name == "comb" and 0 <= args[1] <= args[0] <= LARGEST:
        return Fraction(math.comb(*map(int, args)))
    raise ValueError


def words_of(text: str) -> tuple[str, ...]:
    """The words of a plain text, each in one spelling; those that say nothing are left out."""
    spelt: list[str] = []
    power = ""
    for word in WORD.findall(text):
        for part in _SYNONYMS.get(word.casefold(), word).replace("/", " per ").split():
            if part.casefold() in _POWERS:
                power = _POWERS[part.casefold()]
            elif (spelling := _spelling(part)) not in _EMPTY:
                spelt.append(spelling if spelling in CHANGING else spelling + power)
                power = ""
    return (*spelt, "power") if power else tuple(spelt)


#: Words that make another number of the one next to them.
CHANGING = frozenset(
    "half twice thrice double triple quadruple third quarter fifth reciprocal inverse root power "
    "logarithm sine cosine tangent factorial squared cubed not from between".split()
)


_POWERS = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}
_EMPTY = frozenset(
    "the a an of about approximately around roughly exactly is are total only just value".split()
)
_SPELT = {
    "km": "kilometer kilometre", "cm": "centimeter centimetre", "mm": "millimeter millimetre",
    "m": "meter metre", "kg": "kilogram", "g": "gram", "mg": "milligram", "kl": "kiloliter",
    "ml": "milliliter millilitre", "cl": "centiliter centilitre", "l": "liter litre",
    "h": "hour hr", "min": "minute", "s": "second sec", "in": "inch inche", "ft": "foot feet",
    "mi": "mile", "lb": "pound", "yd": "yard", "oz": "ounce", "km/h": "kph kmh", "mi/h": "mph",
    "celsius": "c", "fahrenheit": "f", "person": "people", "children": "child",
}  # fmt: skip
_SYNONYMS = {word: unit for unit, words in _SPELT.items() for word in words.split()}


def _spelling(word: str) -> str:
    left = word.casefold().replace(".", "")
    power = left[-1:] if left[-1:] in "23" else ""
    left = left.removesuffix(power)
    if len(left) > 3 and left.endswith("s") and not left.endswith("ss"):
        left = left[:-1]
    return _SYNONYMS.get(left, left) + power
