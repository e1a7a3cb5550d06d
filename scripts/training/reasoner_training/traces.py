"""Chains of thought that derive, check and retry, as the reasoner is taught to write them.

A chain derives the goal depth first. At each operand it looks back: "Ben is 7", or "Ben is not
known", which makes it derive Ben. Each settled value names the one settled before it ("After Ben,
Kate is 10."), so that a check pass can walk the values in order: recall the value, quote the fact,
recall the operands, compute again, judge. A pass that saw something wrong is followed by another.

Mistakes are injected into about half of the chains. The mistaken token itself is not trained
(weight 0), everything after it is; the judgement of a check counts three times, and so does what a
line reads from the prompt for the first time.

Some chains forget: what was settled is "not known" (the "not" is not trained) where it is wanted
again, and is derived again. A model whose keys are dropped finds itself there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from experiments.reasoner.problems import Fact, Problem

from . import chain_words
from .chain_words import form_of

JUDGE_WEIGHT = 3.0
RECOMPUTE_WEIGHT = 2.0
READ_WEIGHT = 3.0  # operands, signs and numbers of a fact, read from the prompt
QUOTE_WEIGHT = 2.0  # a fact quoted word for word


@dataclass(frozen=True)
class TraceConfig:
    """How often a chain goes wrong on purpose. Shares are of chains unless noted."""

    faulty: float = 0.6
    fix_fault: float = 0.08  # share of corrections that are wrong themselves
    reread: float = 0.02  # share of lines that first overlook their fact
    missing: float = 0.04  # easy and medium problems with a needed fact taken away
    stubborn: float = 0.03  # easy problems whose correction keeps failing
    give_up: float = 0.5  # share of stubborn chains that give up in the end
    stubborn_passes: int = 3  # failed check passes before a stubborn chain ends
    reads: int = 2  # times a missing fact is looked for at each visit
    starts: int = 2  # visits to a missing fact before giving up
    forget: float = 0.0  # share of the times that a settled value is wanted and not remembered
    most_passes: int = 4  # check passes; a chain that would need more is drawn again
    checks: bool = True  # whether a chain checks itself at all


NO_FAULTS = TraceConfig(faulty=0, fix_fault=0, reread=0, missing=0, stubborn=0)


@dataclass
class Chain:
    """Text with one training weight for each piece emitted, and what happened in it."""

    parts: list[tuple[str, float]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # kinds, in order of injection

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.parts)


class _DrawAgainError(Exception):
    """A mistaken value led outside 0..99, or to more check passes than there may be."""


class _GiveUpError(Exception):
    """The chain ends without an answer."""


def write_trace(problem: Problem, rng: random.Random, config: TraceConfig) -> tuple[str, Chain]:
    """A prompt (a needed fact may have been taken away) and a chain for it.

    Returns:
        prompt and chain; the chain starts with `<think>` and ends with `<eos>`.
    """
    hidden = None
    prompt = problem.prompt
    if problem.level != "hard" and rng.random() < config.missing:
        hidden = rng.choice(sorted(_needed(problem)))
        for sentence in problem.fact_of[hidden].tellings:
            prompt = prompt.replace(sentence, "", 1)
    while True:
        writer = _Writer(problem, rng, config, hidden)
        try:
            writer.run()
        except _DrawAgainError:
            continue
        return prompt, writer.chain


def _needed(problem: Problem) -> set[str]:
    needed: set[str] = set()
    stack = [problem.goal]
    while stack:
        name = stack.pop()
        if name not in needed:
            needed.add(name)
            stack.extend(problem.fact_of[name].operands)
    return needed


def quoted(fact: Fact) -> str:
    """The telling that a check quotes: of two, a function of the name says which."""
    return fact.tellings[form_of(fact.name, len(fact.tellings), shift=12)]


class _Writer:
    def __init__(
        self, problem: Problem, rng: random.Random, config: TraceConfig, hidden: str | None
    ) -> None:
        self.problem, self.rng, self.config, self.hidden = problem, rng, config, hidden
        self.chain = Chain()
        self.known: dict[str, int] = {}
        self.order: list[str] = []  # settled names, as a check pass walks them
        self.last: str | None = None  # the name settled or checked last
        self.visits = 0
        needed = sorted(_needed(problem))
        self.stubborn = problem.level == "easy" and rng.random() < config.stubborn
        self.faulty: set[str] = set()
        if self.stubborn or rng.random() < config.faulty:
            count = min(rng.choice((1, 1, 2, 2, 3, 4)), max(1, len(needed) // 2))
            self.faulty = set(rng.sample(needed, count))

    # -- emitting ----------------------------------------------------------------------------

    def say(self, text: str, weight: float = 1.0) -> None:
        self.chain.parts.append((text, weight))

    def number(self, value: int, weight: float = 1.0) -> None:
        if not 0 <= value <= chain_words.MAX_NUMBER:
            raise _DrawAgainError
        self.say(f" {value}", weight)

    def wrong(self, value: int, kind: str) -> int:
        """A mistaken number in place of `value`, emitted untrained."""
        others = [fact.number for fact in self.problem.facts if fact.number is not None]
        while True:
            mistaken = self.rng.choice(
                (
                    value + self.rng.choice((-3, -2, -1, 1, 2, 3)),
                    self.rng.choice(others),
                    self.rng.randint(1, 60),
                )
            )
            if mistaken != value and 0 <= mistaken <= chain_words.MAX_NUMBER:
                break
        self.chain.faults.append(kind)
        self.number(mistaken, 0.0)
        return mistaken

    # -- the chain ---------------------------------------------------------------------------

    def run(self) -> None:
        goal = self.problem.goal
        self.say(f"{chain_words.THINK}\n\n")
        try:
            self.ask()
            self.derive(goal)
            if self.config.checks:
                self.check_until_clean()
            while not self.ask():
                self.derive(goal)
            self.say(
                f"{chain_words.END_THINK}\n\nThe answer is {chain_words.BOXED}{self.known[goal]}}}."
            )
        except _GiveUpError:
            self.say(chain_words.GIVE_UP[form_of(goal, shift=9)])
            self.say(f"\n\n{chain_words.END_THINK}\n\n{chain_words.NOT_KNOWN}")
        self.say(chain_words.EOS)

    def ask(self) -> bool:
        goal = self.problem.goal
        self.say(chain_words.ASK[form_of(goal)].format(v=goal))
        known = self.recall(goal)
        self.say(".\n\n")
        return known

    def recall(self, name: str) -> bool:
        """State what is remembered of `name`; False where it is not known."""
        if name in self.known:
            self.say(f" {name} is")
            if not self.forgets(name):
                self.number(self.known[name])
                return True
            self.say(" known")
            return False
        self.say(f" {name} is not known")
        return False

    def forgets(self, name: str) -> bool:
        """Now and then what was settled is not remembered: an untrained " not"."""
        if self.rng.random() >= self.config.forget:
            return False
        del self.known[name]
        self.say(" not", 0.0)
        return True

    def open(self, name: str) -> None:
        self.say(chain_words.OPEN[form_of(name, shift=1)].format(v=name))

    def derive(self, name: str) -> None:
        fact = self.problem.fact_of[name]
        if name == self.hidden:
            self.look_in_vain(name)
        if name in self.order:
            self.faulty.discard(name)  # what a check has passed stays right
        if self.rng.random() < self.config.reread:
            self.open(name)
            first, _, rest = chain_words.UNSEEN[form_of(name, shift=2)][1:].partition(" ")
            self.say(f" {first}", 0.0)
            self.say(f" {rest}\n\n")
        self.open(name)
        if fact.kind == "given":
            self.say(chain_words.GIVEN[form_of(name, shift=3)])
            assert fact.number is not None
            fault = "constant" if name in self.faulty else None
            self.settle(name, fact.number, fault, READ_WEIGHT)
            return
        fault = self.pick_fault(fact)
        number = fact.number
        self.say(chain_words.TAKE[form_of(name, shift=4)])
        self.expression(fact, fault)
        if fault == "number":
            number = self.misread
        self.say(",")
        while True:
            value = self.evaluate(fact, number, fault)
            if value is not None:
                break
            missing = next(o for o in fact.operands if o not in self.known)
            self.say(".\n\n")
            self.derive(missing)
            self.say(chain_words.BACK[form_of(name, shift=5)].format(v=name))
        self.say(".")
        self.settle(name, value, "computed" if fault == "computed" else None)

    def look_in_vain(self, name: str) -> None:
        self.visits += 1
        for _ in range(self.config.reads):
            self.open(name)
            self.say(chain_words.UNSEEN[form_of(name, shift=2)] + "\n\n")
        if self.visits >= self.config.starts:
            raise _GiveUpError
        self.say(chain_words.RESTART[form_of(self.problem.goal, shift=8)] + "\n\n")
        self.ask()
        self.derive(self.problem.goal)
        raise _DrawAgainError  # it came through by a guess: nothing is missing any more

    def pick_fault(self, fact: Fact) -> str | None:
        if fact.name not in self.faulty:
            return None
        kinds = ["computed", "computed", "operand", "operand"]
        if fact.number is not None:
            kinds += ["number", "number"]
        if any(operand not in self.known for operand in fact.operands):
            kinds.append("guess")
        return self.rng.choice(kinds)

    def expression(self, fact: Fact, fault: str | None) -> None:
        first = fact.operands[0]
        if fact.kind == "twice":
            self.say(f" {first} twice", READ_WEIGHT)
            return
        sign = "plus" if fact.kind in ("plus", "sum") else "minus"
        self.say(f" {first} {sign}", READ_WEIGHT)
        if fact.number is None:
            self.say(f" {fact.operands[1]}", READ_WEIGHT)
        elif fault == "number":
            self.misread = self.wrong(fact.number, "number")
        else:
            self.number(fact.number, READ_WEIGHT)

    def evaluate(self, fact: Fact, number: int | None, fault: str | None) -> int | None:
        """State operands and operation; the value, or None where an operand is not known."""
        operands: list[int] = []
        for i, operand in enumerate(fact.operands):
            if i == 1:
                self.say(" plus" if fact.kind == "sum" else " minus")
            last = i == len(fact.operands) - 1
            if operand in self.known and fault == "operand" and last:
                self.say(f" {operand} is")
                operands.append(self.wrong(self.known[operand], "operand"))
            elif operand not in self.known and fault == "guess":
                self.say(f" {operand} is not known,")
                self.say(" guess", 0.0)
                operands.append(self.wrong(-1, "guess"))
            elif self.recall(operand):
                operands.append(self.known[operand])
            else:
                return None
            if not last or fact.kind not in ("sum", "diff"):
                self.say(",")
        if fact.kind == "twice":
            self.say(" twice")
            return 2 * operands[0]
        if fact.kind in ("sum", "diff"):
            return operands[0] + operands[1] * (1 if fact.kind == "sum" else -1)
        assert number is not None
        self.say(" plus" if fact.kind == "plus" else " minus")
        self.number(number)
        return operands[0] + number * (1 if fact.kind == "plus" else -1)

    def settle(
        self,
        name: str,
        value: int,
        fault: str | None,
        weight: float = 1.0,
        linked: bool = False,
    ) -> None:
        if name in self.order and not linked:  # it has its place already
            self.say(" Again,")
        else:
            self.say(" First," if self.last is None else f" After {self.last},")
        self.say(f" {name} is")
        if fault is not None:
            value = self.wrong(value, fault)
        else:
            self.number(value, weight)
        self.say(".\n\n")
        self.known[name] = value
        if name not in self.order:
            at = 0 if self.last is None else self.order.index(self.last) + 1
            self.order.insert(at, name)
            self.last = name

    # -- checking ----------------------------------------------------------------------------

    def check_until_clean(self) -> None:
        goal = self.problem.goal
        phrases, failed = chain_words.CHECK, 0
        while True:
            if failed == self.config.most_passes:
                raise _DrawAgainError
            self.say(phrases[form_of(goal, shift=7)] + "\n\n")
            if self.check_pass():
                return
            failed += 1
            phrases = chain_words.RECHECK
            if self.stubborn and failed == self.config.stubborn_passes:
                self.stubborn = False
                if self.rng.random() < self.config.give_up:
                    raise _GiveUpError

    def check_pass(self) -> bool:
        clean = True
        self.last = None
        for name in list(self.order):
            clean &= self.check(name)
            self.last = name
        return clean

    def check(self, name: str) -> bool:
        fact = self.problem.fact_of[name]
        form = form_of(name)
        self.say("First," if self.last is None else f"After {self.last},")
        self.say(f" {name} was")
        held = self.known.get(name)
        if held is None:
            self.say(" not known")
        elif self.forgets(name):
            held = None
            self.say(" known")
        else:
            self.number(held)
        self.say("?")
        self.say(quoted(fact), QUOTE_WEIGHT)
        if fact.kind == "given":
            assert fact.number is not None
            value = fact.number
        else:
            computed, guessed = self.supply(fact)
            if guessed:  # the value was built on it: settle it once more, behind what it lacked
                self.say(".")
                self.settle(name, computed, None, linked=True)
                return False
            value = computed
            self.say(chain_words.MAKES[form_of(name, shift=10)])
            self.number(value, RECOMPUTE_WEIGHT)
            self.say(",")
        if held is None:
            self.say(f" Again, {name} is")
            self.number(value)
            self.known[name] = value
            self.say(".\n\n")
            return True
        agrees = value == held
        self.say(chain_words.VERDICTS[form][0 if agrees else 1], JUDGE_WEIGHT)
        if not agrees:
            self.say(chain_words.WAIT[form_of(name, shift=11)])
            self.say(f" {name} is")
            if self.stubborn or self.rng.random() < self.config.fix_fault:
                self.known[name] = self.wrong(value, "fix")
            else:
                self.number(value)
                self.known[name] = value
            self.say(".")
        self.say("\n\n")
        return agrees

    def supply(self, fact: Fact) -> tuple[int, bool]:
        """The value of a checked fact, and whether an operand had never been settled.

        What it lacks is derived first.
        """
        guessed = False
        while True:
            value = self.evaluate(fact, fact.number, None)
            if value is not None:
                return value, guessed
            missing = next(o for o in fact.operands if o not in self.known)
            guessed |= missing not in self.order
            self.say(".\n\n")
            self.derive(missing)
            self.say(chain_words.BACK[form_of(fact.name, shift=5)].format(v=fact.name))
