"""Problems of the package reasoning-gym: `gym:countdown(max_numbers=4, seed=3)`.

A generator makes problem i of a seed again, and judges an answer itself. The package is imported
where somebody typed such a name and nowhere else. Some of its scorers evaluate an answer, which is
a model's text, as Python: of those an answer is passed on only where its characters can do no harm.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import inspect
import io
import json
import random
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from attention.spec import Spec, parse
from experiments.grid.identity import digest

#: What a data set of these begins with.
PREFIX = "gym:"
#: The name by which users have every generator's own scorer judge what a store has of it.
SCORER = "gym"
#: What stands for the answer of a problem that has no single one.
ANY = "any that the generator accepts"

_PACKAGE = "reasoning-gym"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_ITEM = re.compile(r"[a-z0-9_]+/(?P<version>[\w.+!-]+)/[0-9a-f]{8}/(?P<index>\d{1,9})")

#: Seconds that judging one answer may take, and the longest answer that is judged.
LIMIT, LONGEST = 5, 20_000

_ARITHMETIC = re.compile(r"(?!.*(?:\*\s*\*|/\s*/))[\d\s+\-*/().]{1,200}", re.DOTALL)
_DIGITS = re.compile(r"[\d\s-]*")

#: Generators whose scorer evaluates an answer as Python, and what an answer may be made of.
_EVALUATED = {
    "countdown": _ARITHMETIC,
    "puzzle24": _ARITHMETIC,
    "binary_matrix": _DIGITS,
    "spiral_matrix": _DIGITS,
    "string_insertion": re.compile(r"[A-Z]*"),
    "n_queens": re.compile(r"[Q_\s]*"),
}
_RUNS_ANSWERS = "its scorer runs an answer as code"
_NEVER_THE_SAME = "it makes other problems in every process"
_REFUSED = {
    "codeio": "its problems are made by running code",
    "composite": "it mixes others, which are named one by one: gym:chain_sum,gym:countdown",
    "intermediate_integration": _RUNS_ANSWERS,
    "polynomial_multiplication": _RUNS_ANSWERS,
    "simple_integration": _RUNS_ANSWERS,
    "isomorphic_strings": _NEVER_THE_SAME,
    "knight_swap": _NEVER_THE_SAME,
    "list_functions": _NEVER_THE_SAME,
    "ransom_note": _NEVER_THE_SAME,
    "word_ladder": _NEVER_THE_SAME,
}
#: Generators that evaluate what they wrote themselves, and no answer.
_OWN_TEXT = ("bf", "basic_arithmetic", "bitwise_arithmetic", "number_sorting")
_RUNNING = {"eval", "exec", "compile", "__import__", "parse_expr", "sympify", "lambdify", "loads"}
_HARMLESS = {"json.loads", "re.compile"}


def is_named(name: str) -> bool:
    """Whether a data set is one of these."""
    return name.startswith(PREFIX)


def spelled(text: str) -> str:
    """The canonical name of a data set: parameters in their order, seed 0 left out."""
    return PREFIX + str(_spec(text))


def _spec(text: str) -> Spec:
    spec = parse(text, "dataset", f"{PREFIX}chain_sum(seed=1, max_terms=4)")
    name = spec.name.removeprefix(PREFIX)
    if not _NAME.fullmatch(name):
        allowed = f"{PREFIX}NAME with a generator of {_PACKAGE}, such as {PREFIX}chain_sum"
        raise InvalidValue("dataset", text, allowed)
    params = dict(sorted(spec.params.items()))
    try:
        json.dumps(params, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidValue("dataset", text, "numbers, texts or lists of those") from error
    if params.get("seed") == 0:
        del params["seed"]
    return Spec(name, params)


@dataclass(frozen=True)
class GeneratedProblem:
    """A problem as its generator made it."""

    id: str
    question: str
    answer: str
    entry: Mapping[str, Any] = dataclasses.field(repr=False)


@dataclass(frozen=True)
class Generator:
    """A generator with its parameters."""

    name: str
    version: str
    digest: str
    size: int
    _dataset: Any = dataclasses.field(repr=False, compare=False)

    def problem(self, index: int) -> GeneratedProblem:
        """Problem `index`, from 0; the same each time."""
        return _problem(self.name, index)

    def solves(self, answer: str, index: int) -> bool:
        """Whether the generator's own scorer gives an answer of problem `index` 1.0."""
        allowed = _EVALUATED.get(_spec(self.name).name)
        if len(answer) > LONGEST or (allowed is not None and not allowed.fullmatch(answer)):
            return False
        entry = self.problem(index).entry
        try:
            with _undisturbed(), _limited(LIMIT):
                return bool(self._dataset.score_answer(answer, entry) >= 1.0)
        except Exception:  # an answer of no form that the scorer knows
            return False


def generator(name: str) -> Generator:
    """A generator by the name that somebody typed; the package is imported."""
    return _generator(spelled(name))


@functools.lru_cache(maxsize=32)
def _generator(name: str) -> Generator:
    try:
        with _undisturbed():
            importlib.import_module("reasoning_gym")
            classes = importlib.import_module("reasoning_gym.factory").DATASETS
    except ModuleNotFoundError as error:
        allowed = f"the package `{_PACKAGE}` (`scripts/setup gym` installs it)"
        raise InvalidValue("dataset", name, allowed) from error
    version, spec = metadata.version(_PACKAGE), _spec(name)
    if spec.name not in classes:
        names = [PREFIX + other for other in sorted(classes.keys() - _REFUSED.keys())]
        raise InvalidValue("dataset", name, f"a generator of {_PACKAGE} {version}", names)
    kind, parameters = classes[spec.name]
    source = Path(inspect.getfile(kind)).read_text("utf-8")
    reason = _REFUSED.get(spec.name)
    if reason is None and spec.name not in {*_EVALUATED, *_OWN_TEXT} and runs_code(source):
        reason = f"it evaluates text, which nobody has checked for {_PACKAGE} {version}"
    if reason is not None:
        raise InvalidValue("dataset", name, f"another generator of {_PACKAGE}: {reason}")
    try:
        with _undisturbed():
            dataset = kind(config=parameters(**{"seed": 0, **spec.params}))
            size = len(dataset)
    except Exception as error:  # whatever it makes of values
        allowed = f"parameters that {spec.name} takes ({_reason(error)})"
        raise InvalidValue("dataset", name, allowed) from error
    code = hashlib.sha256(source.encode()).hexdigest()
    return Generator(name, version, digest([name, version, code]), size, dataset)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def runs_code(source: str) -> bool:
    """Whether a module calls what evaluates text, other than functions of its own."""
    nodes = list(ast.walk(ast.parse(source)))
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    return any(name.rpartition(".")[2] in _RUNNING for name in called - _HARMLESS - own)


@functools.lru_cache(maxsize=1 << 14)
def _problem(name: str, index: int) -> GeneratedProblem:
    made_by, spec = _generator(name), _spec(name)
    try:
        with _undisturbed():
            entry = made_by._dataset[index]
        question, answer = str(entry["question"]), entry.get("answer")
    except Exception as error:  # whatever it cannot do with its parameters
        allowed = f"parameters with which problem {index} can be made ({_reason(error)})"
        raise InvalidValue("dataset", name, allowed) from error
    answer = answer if isinstance(answer, str) and answer.strip() else ANY
    id_ = f"{spec.name}/{made_by.version}/{digest(dict(spec.params))[:8]}/{index}"
    return GeneratedProblem(id_, question, answer, entry)


def index_of(made_by: Generator, item_id: str, gold: str) -> int:
    """Which problem of a generator an id of a store means."""
    parts = _ITEM.fullmatch(item_id)
    if parts is None or int(parts["index"]) >= made_by.size:
        raise InvalidValue("problem", item_id, f"a problem of {made_by.name}")
    if parts["version"] != made_by.version:
        allowed = f"{parts['version']}, which made the problems of {made_by.name}"
        raise InvalidValue(f"version of {_PACKAGE}", made_by.version, allowed)
    problem = made_by.problem(int(parts["index"]))
    if (problem.id, problem.answer) != (item_id, gold):
        allowed = f"the problem that {made_by.name} makes, whose answer is {problem.answer[:60]!r}"
        raise InvalidValue(f"answer of {item_id}", gold[:60], allowed)
    return int(parts["index"])


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep what the package prints off standard output, and its draws out of everybody's."""
    state = random.getstate()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        random.setstate(state)


@contextlib.contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """End what takes longer, by an alarm, which the main thread alone can set."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_signal: int, _frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
