r"""Is the answer right? By what the problem's prompt asks for, as its scorer says.

| scorer | where the answer is found | what it is compared by |
|---|---|---|
| `exact` | the last `\boxed{}` | characters |
| `math` | the last `\boxed{}` | the rules of `comparison.RULES`, and math-verify |
| `stated` | what is stated last, see `answers.find` | the same |
| `gym:...` | the same, but no last line or number | the generator's scorer, which has to say 1.0 |

A scorer of one's own is a function `score(output, gold)`, named `module:function` on the command
line or in one's own TOML. What a store names is never imported, a generator neither: without it,
what it would judge is not known.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from attention.errors import InvalidValue
from attention.local_modules import import_typed
from experiments.grid import answers, comparison, gym, mathematics

#: Scorers that ship, by the names users type; `none` measures lengths alone.
SCORERS = ("exact", "math", "stated", "none")

#: One accepted answer, several of which any will do, or none.
Gold: TypeAlias = str | tuple[str, ...] | None


@dataclass(frozen=True)
class Judgement:
    """What was made of a text."""

    correct: bool | None
    rule: str | None = None
    answer: str | None = None
    compared: str | None = None


@dataclass(frozen=True)
class OwnScorer:
    """A scorer of one's own."""

    path: str
    score: Callable[[str, str], object] = field(repr=False)
    digest: str

    def judged(self, text: str, accepted: tuple[str, ...], _item: str, _ended: bool) -> Judgement:
        """Right if the function accepts it with any of the answers."""
        for gold in accepted:
            try:
                verdict = self.score(text, gold)
            except Exception as error:  # whatever it does
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                raise InvalidValue("scorer", self.path, f"one that judges ({reason})") from error
            if not (verdict is None or isinstance(verdict, bool | str)):
                allowed = "one that returns true or false, or the name of a rule"
                raise InvalidValue("scorer", self.path, f"{allowed}, not {type(verdict).__name__}")
            if verdict:
                return Judgement(True, verdict if isinstance(verdict, str) else self.path)
        return Judgement(False)


@dataclass(frozen=True)
class GymScorer:
    """The scorer of a generator of reasoning-gym."""

    path: str
    digest: str

    def judged(self, text: str, accepted: tuple[str, ...], item: str, ended: bool) -> Judgement:
        """Right if the generator gives the answer 1.0, as it stands or without signs around it."""
        generator = gym.generator(self.path)
        index = gym.index_of(generator, item, accepted[0])
        stated = answers.find(text, None, ended, marks_alone=True)
        if stated is None:
            return Judgement(False)
        forms = dict.fromkeys((stated.answer, answers.bare(stated.answer)))
        right = any(generator.solves(form, index) for form in forms)
        return Judgement(right, stated.rule, stated.answer)


#: Scorers that do not ship and that the user named, by path.
Scorers: TypeAlias = Mapping[str, OwnScorer | GymScorer]
NO_SCORERS: Scorers = {}


def is_path(scorer: str) -> bool:
    """Whether a name is that of a scorer that does not ship."""
    return ":" in scorer


def load(path: str) -> OwnScorer | GymScorer:
    """Import a scorer of one's own, as `module:function` typed by the user, or a generator's."""
    if gym.is_named(path):
        generator = gym.generator(path)
        return GymScorer(path, generator.digest)
    module, _, name = path.partition(":")
    try:
        score = getattr(import_typed(module), name)
        inspect.signature(score).bind("output", "gold")
        source = Path(inspect.getfile(inspect.unwrap(score))).read_bytes()
    except Exception as error:  # a file somebody is working on may do anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        allowed = f"an importable module:function of an output and an answer ({reason})"
        raise InvalidValue("scorer", path, allowed) from error
    return OwnScorer(path, score, hashlib.sha256(source).hexdigest()[:32])


def loaded(*scorers: str) -> Scorers:
    """What names that the user typed need: nothing for those that ship."""
    return {scorer: load(scorer) for scorer in scorers if is_path(scorer)}


def judged(
    text: str,
    gold: Gold,
    scorer: str,
    own: Scorers = NO_SCORERS,
    *,
    item: str = "",
    ended: bool = True,
) -> Judgement:
    """What a scorer makes of a generated text; one cut before its answer is not right.

    Args:
        gold: the data set's answer, without its derivation; of several any will do.
        scorer: one of `SCORERS`, or the path of one of `own`.
        item: id of the problem, by which a generator knows it.
        ended: whether the text ended by itself.
    """
    accepted = accepted_answers(gold)
    if is_path(scorer):
        if scorer not in own or not accepted:
            return Judgement(None)
        return own[scorer].judged(text, accepted, item, ended)
    if scorer not in SCORERS:
        raise InvalidValue("scorer", scorer, f"one of {', '.join(SCORERS)}", SCORERS)
    if scorer == "none" or not accepted:
        box = answers.boxed(text)
        return Judgement(None) if box is None else Judgement(None, box.rule, box.answer)
    judgements = [_judged(text, answer, scorer, ended) for answer in accepted]
    verdicts = {judgement.correct for judgement in judgements}
    best = next(verdict for verdict in (True, None, False) if verdict in verdicts)
    return next(judgement for judgement in judgements if judgement.correct is best)


def _judged(text: str, gold: str, scorer: str, ended: bool) -> Judgement:
    """The judgement by one accepted answer."""
    several = scorer != "exact" and comparison.read(gold).members is not None
    if scorer == "stated":
        stated = answers.find(text, gold, ended, several)
    else:
        stated = answers.boxed(text, several)
    if stated is None:
        return Judgement(False)
    if scorer == "exact":
        same = comparison.Comparison(
            stated.answer.strip() == gold.strip(), "character by character"
        )
    else:
        same = comparison.compare(stated.answer, gold)
    return Judgement(same.same, stated.rule, stated.answer, same.rule)


def reason(judgement: Judgement, gold: Gold, scorer: str) -> str:
    """Why an output counts as right, as wrong, or as neither, in words."""
    accepted = accepted_answers(gold)
    shown = " or ".join(map(repr, accepted))
    if not accepted or scorer == "none":
        return "no answer is known" if not accepted else "the scorer none judges nothing"
    if gym.is_named(scorer) and judgement.correct is not None:
        score = "1.0" if judgement.correct else "less than 1.0"
        answer = "no answer" if judgement.answer is None else repr(judgement.answer)
        return f"the generator's scorer gives {answer} {score}"
    if is_path(scorer):
        verdict = {None: "is not loaded", True: f"accepts it by {judgement.rule}"}
        return f"{scorer} {verdict.get(judgement.correct, 'refuses it')}"
    if judgement.answer is None and scorer == "stated":
        return "no rule finds an answer that the output states"
    if judgement.answer is None:
        return "no \\boxed{} of the output is complete"
    if judgement.correct is None:
        return f"{judgement.answer!r} beside {shown}: only math-verify, which is missing, can say"
    same = "equals" if judgement.correct else "does not equal"
    return f"{judgement.answer!r} {same} {shown} {judgement.compared}"


def shown(gold: Gold) -> str | None:
    """The accepted answers as a text, several joined by " or "; None for none."""
    return " or ".join(gold) if isinstance(gold, tuple) else gold


def require(scorer: str, dataset: str, golds: Iterable[Gold] = ()) -> None:
    """Refuse a data set whose answers cannot be judged here, before anything is decoded."""
    if scorer not in ("math", "stated") or mathematics.is_installed():
        return
    for answer in (answer for gold in golds for answer in accepted_answers(gold)):
        if not comparison.is_known(answer):
            allowed = (
                "answers that are numbers, words or lists of these, --scorer exact or none, or the "
                "package `math-verify`, which judges mathematical answers "
                f"(`scripts/setup eval` installs it); {answer[:60]!r} is the first of them"
            )
            raise InvalidValue("dataset", dataset, allowed)


def accepted_answers(gold: Gold) -> tuple[str, ...]:
    """The accepted answers, none or several."""
    return gold if isinstance(gold, tuple) else () if gold is None else (gold,)
