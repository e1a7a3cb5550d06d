"""What must hold on the committed checkpoint: solved, ended, short enough, the same in bf16, and
wrong values found by a later check."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from experiments.reasoner import words
from experiments.reasoner.problems import LEVELS, Problem, problem
from lil import Trace, decode

MAX_NEW_TOKENS = 2500
KINDS = ("computed", "operand", "constant")
_CHECK_STARTS = {f"\n\n{phrase}\n\n" for phrase in words.CHECK}
_REJECTIONS = "|".join(re.escape(pair[1].strip()) for pair in words.VERDICTS)


@dataclass(frozen=True)
class LevelFigures:
    """Greedy decoding with full attention over test problems of one level.

    `accuracy`, `ended` (by eos) and `same_in_bf16` are shares; lengths are tokens, eos counted.
    """

    level: str
    problems: int
    accuracy: float
    ended: float
    mean_tokens: float
    longest: int
    same_in_bf16: float


@dataclass(frozen=True)
class Edit:
    """A chain cut right after a number that was replaced by a wrong one."""

    problem: Problem
    kind: str
    chain: str  # the chain so far, the wrong number at its end
    name: str  # the variable whose check must find it
    settled: bool  # the wrong number is itself the value settled for `name`


def levels(
    model: Any, tokenizer: Any, count: int, on_step: Callable[[int], None] | None = None
) -> Iterator[tuple[LevelFigures, list[Trace]]]:
    """Figures and traces for each level, over the first `count` test problems."""
    half = _in_bf16(model)
    for level in LEVELS:
        drawn = [problem(level, "test", i) for i in range(count)]
        traces, again = (
            decode(
                m,
                tokenizer,
                [p.prompt for p in drawn],
                max_new_tokens=MAX_NEW_TOKENS,
                batch_size=64,
                on_step=on_step,
            )
            for m in (model, half)
        )
        yield (
            LevelFigures(
                level,
                count,
                _mean(solved(p, t) for p, t in zip(drawn, traces, strict=True)),
                _mean(t.finish == "eos" for t in traces),
                _mean(t.tokens for t in traces),
                max(t.tokens for t in traces),
                _mean(a.new_ids == b.new_ids for a, b in zip(traces, again, strict=True)),
            ),
            traces,
        )


def solved(drawn: Problem, trace: Trace) -> bool:
    """The boxed answer is the problem's."""
    return trace.text.split(words.BOXED)[-1].startswith(f"{drawn.answer}}}")


def found(
    model: Any,
    tokenizer: Any,
    kind: str,
    count: int,
    chains: Mapping[str, Sequence[Trace]],
    on_step: Callable[[int], None] | None = None,
) -> tuple[float, list[tuple[Edit, str]]]:
    """Share of `count` wrong values put into the model's own chains that a later check rejects.

    One number of a chain's derivation is replaced, everything after it is cut off and the model
    goes on from there. It counts as found when a later check says that the value settled for the
    variable concerned is wrong and corrects it ("Wait, ...").

    Args:
        chains: the model's own, by level, for the first test problems as `levels` yields them;
            solved ones are taken from all levels in turn.

    Returns:
        the share, and each case with the text that followed.

    Raises:
        ValueError: too few of the chains are solved.
    """
    rng = random.Random(f"edits/{kind}")
    edits: list[Edit] = []
    for index, row in enumerate(zip(*(chains[level] for level in LEVELS), strict=True)):
        for level, trace in zip(LEVELS, row, strict=True):
            drawn = problem(level, "test", index)
            edit = corrupt(drawn, trace.text, kind, rng)
            if edit is not None and solved(drawn, trace):
                edits.append(edit)
    if len(edits) < count:
        raise ValueError(f"{len(edits)} chains to edit, {count} wanted")
    edits = edits[:count]
    followed = decode(
        model,
        tokenizer,
        [e.problem.prompt + e.chain for e in edits],
        max_new_tokens=MAX_NEW_TOKENS,
        batch_size=64,
        on_step=on_step,
    )
    texts = [(e, t.text) for e, t in zip(edits, followed, strict=True)]
    return _mean(rejected(e, text) for e, text in texts), texts


def corrupt(drawn: Problem, chain: str, kind: str, rng: random.Random) -> Edit | None:
    """Replace one number of the chain's derivation by a wrong one; None where there is none."""
    stop = min((chain.find(s) for s in _CHECK_STARTS if s in chain), default=-1)
    if stop < 0:
        return None
    places: list[tuple[int, int, str, bool]] = []  # start and end of the number, name, settled
    for match in re.finditer(r"(?:First|After \w+), (\w+) is (\d+)\.", chain[:stop]):
        given = drawn.fact_of[match[1]].kind == "given"
        if kind == ("constant" if given else "computed"):
            places.append((*match.span(2), match[1], True))
    # A line that settles a value: operands stand between its head and ". After".
    for line in re.finditer(r"\n\n([^\n]*)\. (?:First|After \w+), (\w+) is \d+\.", chain[:stop]):
        for match in re.finditer(r" (\w+) is (\d+)(?=,|$)", line[1]):
            if kind == "operand":
                at = line.start(1)
                places.append((at + match.start(2), at + match.end(2), line[2], False))
        for match in re.finditer(r" (?:plus|minus) (\d+)(?=,)", line[1]):
            if kind == "constant":  # the number of the premise, misread
                at = line.start(1)
                places.append((at + match.start(1), at + match.end(1), line[2], False))
    if not places:
        return None
    start, end, name, settled = rng.choice(places)
    value = int(chain[start:end])
    wrong = rng.choice([n for n in range(max(1, value - 9), value + 10) if n != value])
    return Edit(drawn, kind, f"{chain[:start]}{wrong}", name, settled)


def rejected(edit: Edit, text: str) -> bool:
    """A check in `text` rejects a value of the edit's variable."""
    pattern = rf"(?:First|After \w+), {edit.name} was \d+\?[^\n]* (?:{_REJECTIONS}) Wait,"
    return re.search(pattern, text) is not None


def _in_bf16(model: Any) -> Any:
    half = type(model)(model.config)
    half.load_state_dict(model.state_dict())
    return half.to(dtype=torch.bfloat16, device=model.device).eval()


def _mean(values: Any) -> float:
    numbers = [float(v) for v in values]
    return sum(numbers) / len(numbers)
