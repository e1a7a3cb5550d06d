"""Is the answer right? Exact match for the reasoner's problems, math-verify for mathematics."""

from __future__ import annotations

import functools
import importlib.util
import re

from attention.errors import InvalidValue

_BOX = "\\boxed{"
_BASED = re.compile(r"(?P<digits>[0-9A-Za-z]+)_\{?(?P<base>\d+)\}?")

#: Seconds that comparing two answers may take; what takes longer is wrong.
LIMIT = 5


def last_boxed(text: str) -> str | None:
    r"""What stands in the last complete `\boxed{...}`, inner braces balanced; None without one.

    A generation cut inside its box has no answer there: the box before it, if any, is taken.
    """
    found = None
    start = text.find(_BOX)
    while start >= 0:
        begin = start + len(_BOX)
        depth = 1
        for at in range(begin, len(text)):
            if text[at] == "{":
                depth += 1
            elif text[at] == "}":
                depth -= 1
            if depth == 0:
                found = text[begin:at]
                break
        start = text.find(_BOX, begin)
    return found


def correct(text: str, gold: str, scorer: str) -> bool:
    """Whether a generated text solves its problem; one cut before its answer does not.

    Args:
        text: the generated text, without the prompt.
        gold: the data set's answer, without its derivation.
        scorer: "exact" compares the characters in the box, "math" asks math-verify.

    Raises:
        InvalidValue: an unknown scorer, or mathematics without math-verify.
    """
    if scorer not in ("exact", "math"):
        raise InvalidValue("scorer", scorer, "exact or math", ("exact", "math"))
    answer = last_boxed(text)
    if answer is None:
        return False
    if scorer == "exact":
        return answer.strip() == gold.strip()
    return _same_mathematics(answer, gold)


def require(scorer: str, dataset: str) -> None:
    """Refuse a data set whose answers cannot be judged here, before anything is decoded.

    Raises:
        InvalidValue: mathematics without math-verify.
    """
    if scorer == "math" and importlib.util.find_spec("math_verify") is None:
        allowed = (
            "the package `math-verify` to judge mathematical answers "
            "(`scripts/setup eval` installs it)"
        )
        raise InvalidValue("dataset", dataset, allowed)


@functools.lru_cache(maxsize=1 << 17)
def _same_mathematics(answer: str, gold: str) -> bool:
    require("math", "mathematics")
    from math_verify import parse, verify

    bases = [_BASED.fullmatch(side.strip()) for side in (gold, answer)]
    if None not in bases and bases[0]["base"] != bases[1]["base"]:  # type: ignore[index]
        return False  # math-verify drops the subscript
    # Its alarms, which only the main thread can set, end what would not: a tower of powers, a huge
    # factorial. What takes longer is no answer.
    boxed = [parse(f"{_BOX}{side}}}", parsing_timeout=LIMIT) for side in (gold, answer)]
    return bool(verify(*boxed, timeout_seconds=LIMIT))
