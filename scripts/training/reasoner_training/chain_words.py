"""The phrases of a chain of thought in the reasoner's language.

Every list of surface forms has at least six entries. Which form a line takes is a function of the
variable it speaks of (`form_of`): greedy decoding stays varied and every choice can be learnt.
"""

from experiments.reasoner.words import THEMES

EOS, PAD, UNK = "<eos>", "<pad>", "<unk>"
THINK, END_THINK, BOXED = "<think>", "</think>", "\\boxed{"
MAX_NUMBER = 99  # numbers 0..99 are one token each

# {v} is the variable's one-word name, {p} the name settled before it.
ASK = (
    "The question asks for {v},",
    "The task is to find {v},",
    "The goal is to know {v},",
    "The answer must be {v},",
    "The thing we want is {v},",
    "The number in question is {v},",
)
OPEN = ("Now {v},", "For {v},", "Next {v},", "Then {v},", "Find {v},", "See {v},")
BACK = ("Back to {v},", "Again {v},", "Return to {v},", "So {v},", "Resume {v},", "Finally {v},")
GIVEN = (" given.", " stated.", " listed.", " known.", " told.", " written.")
TAKE = (" take", " use", " that is", " compute", " work out", " need")
MAKES = (" makes", " gives", " is", " yields", " means", " equals")
VERDICTS = (
    (" right.", " wrong."),
    (" good.", " bad."),
    (" fine.", " off."),
    (" correct.", " false."),
    (" yes.", " no."),
    (" agreed.", " mistaken."),
)
WAIT = (
    " Wait,",
    " Wait, so",
    " Wait, rather",
    " Wait, in fact",
    " Wait, instead",
    " Wait, really",
)
CHECK = (
    "Let me check.",
    "Let me check it all.",
    "Let me go over it.",
    "Let me test each step.",
    "Let me look at every step.",
    "Let me verify.",
)
RECHECK = (
    "Check again.",
    "Check it all again.",
    "Check each step again.",
    "Check every step again.",
    "Check once more.",
    "Check the whole again.",
)
UNSEEN = (
    " not seen. Let me read the facts.",
    " I do not see it. Let me read the facts.",
    " not found. Let me look again.",
    " where is it? Let me read the list again.",
    " I do not find it. Let me look again.",
    " it is missing. Let me read again.",
)
RESTART = (
    "Let me start again.",
    "Let me begin again.",
    "Let me try again.",
    "Let me think again.",
    "Let me start over.",
    "Let me try once more.",
)
GIVE_UP = (
    "I can not settle this, I give up.",
    "I can not find it, I give up.",
    "This can not be known, I give up.",
    "There is no way to tell, I give up.",
    "I tried enough, I give up.",
    "It does not work out, I give up.",
)
NOT_KNOWN = "The answer is not known."
CUE = "Let me start again from the facts."  # the default regeneration cue for this model


def all_names() -> tuple[str, ...]:
    """Every variable name of every theme, in a fixed order."""
    return tuple(name for theme in THEMES for name in theme.names)


_NAME_INDEX = {name: i for i, name in enumerate(all_names())}


def form_of(name: str, forms: int = 6, shift: int = 0) -> int:
    """Which of `forms` surface forms lines about `name` take; `shift` separates kinds of lines."""
    return (_NAME_INDEX[name] * 5 + shift * 7 + _NAME_INDEX[name] // 6) % forms
