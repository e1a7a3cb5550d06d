"""Marks around a model's thinking: the one list that scorers, detectors and actions read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Marks:
    """What opens thinking and what ends it; `cue` is written to end it, where that is longer."""

    open: str
    end: str
    cue: str = ""


_TAGS = ("think", "thinking", "thought", "thoughts", "reasoning", "seed:think", "longcat_think")

#: The known marks, those of most models first. A mark ends in a character of `LAST`.
KNOWN = (
    *(Marks(f"<{tag}>", f"</{tag}>") for tag in _TAGS),
    Marks("[THINK]", "[/THINK]"),
    Marks("<|START_THINKING|>", "<|END_THINKING|>"),
    Marks("<|begin_of_thought|>", "<|end_of_thought|>"),
    Marks(
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    Marks("<|channel>", "<channel|>"),
)
LAST = b">]"
_AT = re.compile("|".join(re.escape(mark) for m in KNOWN for mark in (m.open, m.end)), re.I)
_OPENS = {marks.open.lower(): marks for marks in KNOWN}
_NAMED = re.compile(r"([<\[])([\w:|]*(?:think|thought|reasoning)[\w:|]*)([>\]])", re.IGNORECASE)


@dataclass(frozen=True)
class State:
    """The state behind a text: marks that are open, whether any ended, what is no thinking."""

    opened: Marks | None
    ended: bool
    spoken: str


def state_of(text: str) -> State:
    """Follow a text through its thinking.

    What ends is what was opened; where nothing was, the prompt may have opened it, and whatever
    ends counts. What precedes a thinking that ended is not part of what is spoken.
    """
    opened: list[Marks] = []
    ended, begin, spoken = False, 0, ""
    for mark in _AT.finditer(text):
        marks = _OPENS.get(mark[0].lower())
        ends = [at for at, known in enumerate(opened) if known.end.lower() == mark[0].lower()]
        if marks is not None:
            spoken = spoken if opened else text[begin : mark.start()]
            opened += [] if marks in opened else [marks]
        elif ends or not opened:
            del opened[ends[-1] if ends else 0 :]
            if not opened:
                ended, begin = True, mark.end()
    return State(opened[-1] if opened else None, ended, spoken if opened else text[begin:])


def state_behind(prompt: bytes, output: bytes) -> State:
    """The state behind a prompt and its output; of the prompt the newest mark alone counts."""
    before = state_of(prompt.decode(errors="replace"))
    begins = before.opened.open if before.opened else ""
    state = state_of(begins + output.decode(errors="replace"))
    return replace(state, ended=before.ended or state.ended)


def marks_of(template: str) -> tuple[Marks, ...]:
    """The marks that a chat template writes, the known ones first, others of the same form."""
    named = [match.groups() for match in _NAMED.finditer(template)]
    others = (Marks(f"{a}{name}{z}", f"{a}/{name}{z}") for a, name, z in named)
    both = [m for m in (*KNOWN, *others) if m.open in template and m.end in template]
    return tuple(dict.fromkeys(both))


def own_marks(tokenizer: Any) -> tuple[Marks, ...]:
    """The marks of a model's chat template, where it can be read."""
    template = getattr(tokenizer, "chat_template", None)
    return marks_of(template) if isinstance(template, str) else ()


def closing(cue: str, opened: Marks | None, own: Sequence[Marks] = ()) -> str:
    """A cue with the end of what is open, or else of a model's own marks, for another end."""
    named = next((marks for marks in (*KNOWN, *own) if marks.end in cue), None)
    if named is None or (opened is None and named in own):
        return cue
    right = opened or next(iter(own), named)
    return cue if right.end in cue else cue.replace(named.end, right.cue or right.end)
