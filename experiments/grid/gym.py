"""Problems of the package reasoning-gym: `gym:countdown(max_numbers=4, seed=3)`.

A generator makes problem i of a seed again whenever it is asked, and judges an answer itself. The
package is imported where somebody typed such a name and nowhere else; what a store says is text,
held against a rule for names before the package is asked.

Some of its scorers have Python evaluate an answer, which is a model's text. Of those an answer is
handed over only where it is made of characters that can do no harm; the others are refused.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import io
import math
import random
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue, check_int
from attention.spec import Spec, parse
from experiments.grid.identity import digest

#: What a data set of these begins with.
PREFIX = "gym:"

#: What a user names to have every generator's own scorer judge what a store has of it.
SCORER = "gym"

#: What stands for the answer of a problem that has no single one.
ANY = "any that the generator accepts"

_PACKAGE = "reasoning-gym"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_ITEM = re.compile(
    r"(?P<name>[a-z0-9_]+)/(?P<version>[\w.+!-]+)/(?P<digest>[0-9a-f]{8})/(?P<at>\d+)"
)

#: Seconds that judging one answer may take, and the longest answer that is looked at.
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
    """The name of a data set as it is kept: parameters in their order, seed 0 left out.

    Text alone: whether there is such a generator is not looked up.

    Raises:
        InvalidValue: no name of a generator, or parameters that are none.
    """
    return PREFIX + str(_spec(text))


def _spec(text: str) -> Spec:
    spec = parse(text, "dataset", f"{PREFIX}chain_sum(seed=1, max_terms=4)")
    spec = Spec(spec.name.removeprefix(PREFIX), spec.params)
    if not _NAME.fullmatch(spec.name):
        allowed = f"{PREFIX}NAME with a generator of {_PACKAGE}, such as {PREFIX}chain_sum"
        raise InvalidValue("dataset", text, allowed)
    params = dict(sorted(spec.params.items()))
    for key, value in params.items():
        if not _plain(value):
            raise InvalidValue(f"{key} of {text}", value, "a number, a text, or a list of those")
    if params.get("seed", 0) == 0 and params.pop("seed", 0) is False:
        raise InvalidValue(f"seed of {text}", False, "a whole number")
    if "seed" in params:
        check_int(f"seed of {text}", params["seed"], least=0)
    if "size" in params:
        check_int(f"size of {text}", params["size"], least=1)
    return Spec(spec.name, params)


def _plain(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_plain, value))
    if isinstance(value, Mapping):
        return all(map(_plain, value.values()))
    return isinstance(value, bool | int | str) or (
        isinstance(value, float) and math.isfinite(value)
    )


@dataclass(frozen=True)
class Made:
    """A problem as its generator made it."""

    id: str
    question: str
    answer: str
    entry: Mapping[str, Any] = dataclasses.field(repr=False)


@dataclass(frozen=True)
class Generator:
    """A generator with its parameters.

    Attributes:
        name: as `spelled` gives it.
        version: of the package.
        digest: of version, parameters and the generator's code.
        size: how many problems it makes.
    """

    name: str
    version: str
    digest: str
    size: int
    _dataset: Any = dataclasses.field(repr=False, compare=False)

    def problem(self, index: int) -> Made:
        """Problem `index`, from 0; the same each time.

        Raises:
            InvalidValue: it cannot be made.
        """
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
        except Exception:  # of an answer that is of no form it knows
            return False


def generator(name: str) -> Generator:
    """A generator by the name that somebody typed; the package is imported.

    Raises:
        InvalidValue: no such package, generator or parameter, a value it refuses, or a generator
            that is not safe to use or does not make the same problems twice.
    """
    return _generator(spelled(name))


@functools.lru_cache(maxsize=32)
def _generator(name: str) -> Generator:
    known = _known(name)
    spec = _spec(name)
    if spec.name not in known:
        names = [one for one in known if one not in _REFUSED]
        near = [PREFIX + one for one in difflib.get_close_matches(spec.name, names, n=1)]
        allowed = f"one of the {len(names)} generators of {_PACKAGE} {_version()}"
        if not near:
            allowed += f": {', '.join(names)}"
        raise InvalidValue("dataset", name, allowed, near)
    kind, config = known[spec.name]
    _require_safe(name, spec.name, kind)
    fields = {one.name: one for one in dataclasses.fields(config)}
    given = {"seed": 0, **spec.params}
    for key in given:
        if key not in fields:
            allowed = f"a parameter of {spec.name}: {', '.join(fields)}"
            raise InvalidValue(f"parameter of {PREFIX}{spec.name}", key, allowed, fields)
    given = {key: _as_default(value, fields[key].default) for key, value in given.items()}
    try:
        with _undisturbed():
            made = config(**given)
            dataset = kind(config=made)
    except Exception as error:  # whatever it makes of values
        allowed = f"parameters that {spec.name} takes ({_reason(error)})"
        raise InvalidValue("dataset", name, allowed) from error
    source = Path(inspect.getfile(kind)).read_bytes()
    told = digest([name, _version(), hashlib.sha256(source).hexdigest()])
    return Generator(name, _version(), told, len(dataset), dataset)


def _known(name: str) -> Mapping[str, tuple[Any, Any]]:
    """Every generator of the package: its class, and that of its parameters."""
    if importlib.util.find_spec("reasoning_gym") is None:
        allowed = f"the package `{_PACKAGE}` (`scripts/setup gym` installs it)"
        raise InvalidValue("dataset", name, allowed)
    with _undisturbed():
        importlib.import_module("reasoning_gym")
        known = importlib.import_module("reasoning_gym.factory").DATASETS
    return dict(sorted(known.items()))


def _version() -> str:
    return metadata.version(_PACKAGE)


def _as_default(value: Any, default: Any) -> Any:
    """A list as a tuple where the parameter is one."""
    return tuple(value) if isinstance(value, list) and isinstance(default, tuple) else value


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _require_safe(name: str, generator_name: str, kind: type) -> None:
    """Refuse what cannot be used, also of a later version of the package.

    Raises:
        InvalidValue: it is not to be used.
    """
    why = _REFUSED.get(generator_name)
    read = generator_name in _EVALUATED or generator_name in _OWN_TEXT
    if why is None and not read and runs_code(Path(inspect.getfile(kind)).read_text("utf-8")):
        why = f"it evaluates text, which nobody has read for {_PACKAGE} {_version()}"
    if why is not None:
        raise InvalidValue("dataset", name, f"another generator of {_PACKAGE}: {why}")


def runs_code(source: str) -> bool:
    """Whether a module calls what evaluates text, other than functions of its own."""
    tree = ast.parse(source)
    own = {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}
    called = {
        ast.unparse(one.func) for one in ast.walk(tree) if isinstance(one, ast.Call)
    } - _HARMLESS
    return any(one not in own and one.rpartition(".")[2] in _RUNNING for one in called)


@functools.lru_cache(maxsize=1 << 14)
def _problem(name: str, index: int) -> Made:
    made = _generator(name)
    try:
        with _undisturbed():
            entry = made._dataset[index]
        question, answer = entry["question"], entry.get("answer")
    except Exception as error:  # whatever it cannot do with its parameters
        allowed = f"parameters with which problem {index} can be made ({_reason(error)})"
        raise InvalidValue("dataset", name, allowed) from error
    if not isinstance(question, str) or not question.strip():
        raise InvalidValue("dataset", name, f"a generator of texts (problem {index} is none)")
    told = answer if isinstance(answer, str) and answer.strip() else ANY
    spec = _spec(name)
    params = digest(dict(spec.params))[:8]
    return Made(f"{spec.name}/{made.version}/{params}/{index}", question, told, entry)


def index_of(made_by: Generator, item_id: str, gold: str) -> int:
    """Which problem of a generator an id of a store means.

    Raises:
        InvalidValue: none of it, or one that another version of the package made.
    """
    told = _ITEM.fullmatch(item_id)
    if told is None or int(told["at"]) >= made_by.size:
        raise InvalidValue("problem", item_id, f"a problem of {made_by.name}")
    if told["version"] != made_by.version:
        allowed = f"{told['version']}, which made the problems of {made_by.name}"
        raise InvalidValue(f"version of {_PACKAGE}", made_by.version, allowed)
    problem = made_by.problem(int(told["at"]))
    if (problem.id, problem.answer) != (item_id, gold):
        allowed = f"the problem that {made_by.name} makes, whose answer is {problem.answer[:60]!r}"
        raise InvalidValue(f"answer of {item_id}", gold[:60], allowed)
    return int(told["at"])


# ---------------------------------------------------------------- the package's manners


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
    """End what takes longer, by an alarm, which the main thread alone can set.

    Raises:
        TimeoutError: it took longer.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
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
