"""The reasoner's language as a grammar of lines: what a line does, and to which name."""

from __future__ import annotations

import re
from typing import NamedTuple

NAME = r"[A-Za-z]+"
OPENING = rf"(?:Now|For|Next|Then|Find|See) (?P<name>{NAME}),"
BACK = rf"(?:Back to|Again|Return to|So|Resume|Finally) (?P<name>{NAME}),"
LINK = rf"(?:First,|After {NAME},|Again,)"
NOT_KNOWN = r"not known"
RECALL = rf"{NAME} is (?:\d+|not known, guess \d+)"
UNSEEN = (
    r"not seen\. Let me read the facts\.|I do not see it\. Let me read the facts\."
    r"|not found\. Let me look again\.|where is it\? Let me read the list again\."
    r"|I do not find it\. Let me look again\.|it is missing\. Let me read again\."
)
GIVEN = "given|stated|listed|known|told|written"
EXPRESSION = (
    rf"(?:take|use|that is|compute|work out|need) {NAME} (?:twice|(?:plus|minus) (?:{NAME}|\d+)),"
)
#: Operands as they are remembered and what is done with them.
WORKED = rf"{RECALL},? (?:twice|(?:plus|minus) (?:\d+|{RECALL}))"
#: The same up to an operand that is not.
WANTING = rf"(?:{RECALL},? (?:plus|minus) )?(?P<wants>{NAME}) is {NOT_KNOWN}\."
SETTLED = rf"{LINK} (?P<settled>{NAME}) is (?P<value>\d+)\."
MAKES = r"(?:makes|gives|is|yields|means|equals) \d+,"
VERDICT = (
    "(?:(?:right|good|fine|correct|yes|agreed)\\."
    "|(?:wrong|bad|off|false|no|mistaken)\\."
    rf" Wait,(?: so| rather| in fact| instead| really)? {NAME} is (?P<mended>\d+)\.)"
)
QUESTION = rf"(?:First|After {NAME}), (?P<name>{NAME}) was (?P<was>\d+|not known)\?"
QUOTED = r"[^.?]*\."
#: A value that a check missed is settled by it.
AGAIN = rf"Again, (?P<settled>{NAME}) is (?P<value>\d+)\."
JUDGED = rf"(?:{WORKED} {MAKES} )?(?:{VERDICT}|{AGAIN})"
ASKED = (
    r"(?:The question asks for|The task is to find|The goal is to know|The answer must be"
    rf"|The thing we want is|The number in question is) {NAME}, {NAME} is (?:\d+|not known)\."
)
CHECK = r"Let me (?:check|check it all|go over it|test each step|look at every step|verify)\."
RECHECK = (
    r"Check (?:again|it all again|each step again|every step again|once more|the whole again)\."
)
RESTART = r"Let me (?:start again|begin again|try again|think again|start over|try once more)\."
GIVE_UP = (
    r"(?:I can not settle this|I can not find it|This can not be known|There is no way to tell"
    r"|I tried enough|It does not work out), I give up\."
)

#: What a line is, the first that fits it from end to end.
SHAPES: dict[str, re.Pattern[str]] = {
    kind: re.compile(shape)
    for kind, shape in {
        "think": r"<think>",
        "asked": ASKED,
        "unseen": rf"{OPENING} (?:{UNSEEN})",
        "derived": rf"{OPENING} (?:(?:{GIVEN})\.|{EXPRESSION} {WORKED}\.) {SETTLED}",
        "wanting": rf"{OPENING} {EXPRESSION} {WANTING}",
        "back": rf"{BACK} {WORKED}\. {SETTLED}",
        "back wanting": rf"{BACK} {WANTING}",
        "back judged": rf"{BACK} {WORKED} {MAKES} (?:{VERDICT}|{AGAIN})",
        "checked": rf"{QUESTION} {QUOTED} {JUDGED}",
        "check wanting": rf"{QUESTION} {QUOTED} {WANTING}",
        "check settled": rf"{QUESTION} {QUOTED} {WORKED}\. {SETTLED}",
        "check": CHECK,
        "recheck": RECHECK,
        "restart": RESTART,
        "gave up": GIVE_UP,
        "end": r"</think>",
        "answer": r"The answer is \\boxed\{\d+\}\.(?:<eos>)?",
        "not known": r"The answer is not known\.(?:<eos>)?",
    }.items()
}

#: How a line begins that was cut, or that goes on as no line does.
HEADS = {
    "opening": re.compile(OPENING),
    "back": re.compile(BACK),
    "question": re.compile(
        rf"(?:First|After {NAME}), (?P<name>{NAME}) was (?:\d{{1,3}}(?!\d)|{NOT_KNOWN})(?:\?|\Z)"
    ),
}


class Line(NamedTuple):
    """What a line is, whom it speaks of, and what it settles or mends."""

    kind: str
    name: str | None = None
    found: re.Match[str] | None = None

    def part(self, group: str) -> str | None:
        """A part of the line that its shape has a name for."""
        return self.found.groupdict().get(group) if self.found else None


def read(line: str) -> Line:
    """What a line is; `other` where the language has no such line."""
    for kind, shape in SHAPES.items():
        found = shape.fullmatch(line)
        if found:
            return Line(kind, found.groupdict().get("name"), found)
    return Line("other")


def head(line: str) -> tuple[str, str] | None:
    """How a line begins and whom it speaks of; None where no line begins so."""
    for kind, shape in HEADS.items():
        found = shape.match(line)
        if found:
            return kind, found["name"]
    return None


def quoted(line: str) -> int:
    """Where the fact that a check quotes behind its question ends; 0 for other lines."""
    found = HEADS["question"].match(line)
    if found is None:
        return 0
    stop = line.find(".", found.end())
    return len(line) if stop < 0 else stop + 1


ASKING = re.compile(
    r"(?:(?:How many|What number of) \w+ does (?P<a>.+) \w+\?|Tell how many \w+ (?P<b>.+) \w+\."
    r"|Find the number of \w+ that (?P<c>.+) \w+\.|Say how many \w+ (?P<d>.+) must \w+\."
    r"|Work out what (?P<e>.+) \w+ in \w+\.)"
)


def goal(prompt: str) -> str:
    """The one-word name of what a prompt asks for.

    Raises:
        ValueError: a prompt that asks for nothing in a way known here.
    """
    found = ASKING.fullmatch(prompt.strip().rpartition("\n")[2])
    if found is None:
        raise ValueError(f"asks nothing: {prompt!r}")
    (said,) = (one for one in found.groups() if one)
    return re.sub(r"^the | box$", "", re.sub(r" box$", "", said))
