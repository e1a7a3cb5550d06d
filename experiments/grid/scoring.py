r"""Is the answer right? Exact match for the reasoner's problems, math-verify for mathematics.

A scorer of one's own is a function `score(output, gold)`, named `module:function` on the command
line or in one's own TOML. What a store names is never imported: without the function, what it would
judge is not known.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from attention.errors import InvalidValue

#: Scorers that ship, by the names users type; `none` measures lengths alone.
SCORERS = ("exact", "math", "none")

#: One accepted answer, several of which any will do, or none.
Gold: TypeAlias = str | tuple[str, ...] | None

_BOX = "\\boxed{"
_BASED = re.compile(r"(?P<digits>[0-9A-Za-z]+)_\{?(?P<base>\d+)\}?")

#: Seconds that comparing two answers may take; what takes longer is wrong.
LIMIT = 5


def boxed(text: str) -> list[str]:
    r"""What stands in each complete `\boxed{...}`, inner braces balanced, in the text's order."""
    found = []
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
                found.append(text[begin:at])
                break
        start = text.find(_BOX, begin)
    return found


def last_boxed(text: str) -> str | None:
    r"""What stands in the last complete `\boxed{...}`; None without one.

    A generation cut inside its box has no answer there: the box before it, if any, is taken.
    """
    return next(reversed(boxed(text)), None)


@dataclass(frozen=True)
class OwnScorer:
    """A scorer of one's own.

    Args:
        path: `module:function`, as typed.
        score: called with an output and an accepted answer; true or false, or the name of the rule
            by which the output is right, "" or None where it is not.
        digest: of the file it stands in.
    """

    path: str
    score: Callable[[str, str], object] = field(repr=False)
    digest: str


#: Scorers of one's own that were asked for, by path.
Scorers: TypeAlias = Mapping[str, OwnScorer]
NO_SCORERS: Scorers = {}


def is_path(scorer: str) -> bool:
    """Whether a name is that of a scorer of one's own."""
    return ":" in scorer


def load(path: str) -> OwnScorer:
    """Import a scorer of one's own, as `module:function` typed by the user.

    Raises:
        InvalidValue: it cannot be imported, or is no function of an output and an answer.
    """
    module, _, name = path.partition(":")
    try:
        score = getattr(importlib.import_module(module), name)
        inspect.signature(score).bind("output", "gold")
        source = Path(inspect.getfile(inspect.unwrap(score))).read_bytes()
    except Exception as error:  # a file somebody is working on may do anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        allowed = f"an importable module:function of an output and an answer ({reason})"
        raise InvalidValue("scorer", path, allowed) from error
    return OwnScorer(path, score, hashlib.sha256(source).hexdigest()[:32])


def loaded(scorer: str) -> Scorers:
    """What a name that the user typed needs: nothing for those that ship.

    Raises:
        InvalidValue: as `load`.
    """
    return {scorer: load(scorer)} if is_path(scorer) else NO_SCORERS


@dataclass(frozen=True)
class Judgement:
    """What was made of a text.

    Attributes:
        correct: None where that cannot be said: no accepted answer, or a scorer that is not here.
        rule: by which its answer was found, or it was found right; None without one.
        answer: as it stands in the text; None where none was found, or nobody says which.
    """

    correct: bool | None
    rule: str | None = None
    answer: str | None = None


def judged(text: str, gold: Gold, scorer: str, own: Scorers = NO_SCORERS) -> Judgement:
    """What a scorer makes of a generated text; one cut before its answer is not right.

    Args:
        text: the generated text, without the prompt.
        gold: the data set's answer, without its derivation; of several any will do.
        scorer: "exact" compares the characters in the box, "math" asks math-verify, "none" judges
            nothing; or the path of one of `own`.
        own: scorers of one's own that are here.

    Raises:
        InvalidValue: an unknown scorer, one of one's own that fails, or mathematics without
            math-verify.
    """
    accepted = gold if isinstance(gold, tuple) else () if gold is None else (gold,)
    if is_path(scorer):
        if scorer not in own or not accepted:
            return Judgement(None)
        return _by_own(text, accepted, own[scorer])
    if scorer not in SCORERS:
        raise InvalidValue("scorer", scorer, f"one of {', '.join(SCORERS)}", SCORERS)
    answer = last_boxed(text)
    rule = None if answer is None else "the last \\boxed{}"
    if scorer == "none" or not accepted:
        return Judgement(None, rule, answer)
    if answer is None:
        return Judgement(False)
    if scorer == "exact":
        right = any(answer.strip() == one.strip() for one in accepted)
    else:
        right = any(_same_mathematics(answer, one) for one in accepted)
    return Judgement(right, rule, answer)


def reason(found: Judgement, gold: Gold, scorer: str) -> str:
    """Why an output counts as right, as wrong, or as neither, in words.

    Args:
        found: what `judged` said of it.
        gold, scorer: as it was told.
    """
    accepted = gold if isinstance(gold, tuple) else () if gold is None else (gold,)
    shown = " or ".join(map(repr, accepted))
    if not accepted or scorer == "none":
        return "no answer is known" if not accepted else "the scorer none judges nothing"
    if is_path(scorer):
        said = {None: "is not loaded", True: f"accepts it by {found.rule}", False: "refuses it"}
        return f"{scorer} {said[found.correct]}"
    if found.answer is None:
        return "no \\boxed{} of the output is complete"
    compared = "character by character" if scorer == "exact" else "as mathematics (math-verify)"
    same = "equals" if found.correct else "does not equal"
    return f"{found.answer!r} {same} {shown} {compared}"


def shown(gold: Gold) -> str | None:
    """The accepted answers as a text, several joined by " or "; None for none."""
    return " or ".join(gold) if isinstance(gold, tuple) else gold


def correct(text: str, gold: Gold, scorer: str, own: Scorers = NO_SCORERS) -> bool | None:
    """Whether a generated text solves its problem, as `judged` says."""
    return judged(text, gold, scorer, own).correct


def _by_own(text: str, accepted: tuple[str, ...], own: OwnScorer) -> Judgement:
    for gold in accepted:
        try:
            said = own.score(text, gold)
        except Exception as error:  # whatever it does
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise InvalidValue("scorer", own.path, f"one that judges ({reason})") from error
        if not (said is None or isinstance(said, bool | str)):
            allowed = "one that returns true or false, or the name of a rule"
            raise InvalidValue("scorer", own.path, f"{allowed}, not {type(said).__name__}")
        if said:
            return Judgement(True, said if isinstance(said, str) else own.path)
    return Judgement(False)


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
