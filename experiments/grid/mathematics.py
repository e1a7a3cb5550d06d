"""Mathematics that math-verify compares, in a process of its own.

Some expressions never end: a tower of powers, a sum of a billion terms. math-verify's own limit is
an alarm, which the main thread alone can set; a process can be ended from any thread. Its limit is
in seconds of its processor, so that other work on a machine changes no verdict. Comparisons are
exact but for decimals with `places` digits behind the point.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import json
import os
import re
import resource
import selectors
import signal
import subprocess
import sys
import threading
from typing import Any

#: Seconds of its processor that a comparison may take; what takes longer is wrong.
LIMIT = 5.0
#: A process that has not answered after so many times the limit is ended; starting may take more.
PATIENCE, STARTING = 4, 120.0
#: Bytes that its process may take.
MEMORY = 1 << 32

_LOCK = threading.Lock()
_DECIMAL = re.compile(r"(?<![\w.])(\d*)\.(\d+)(?![\w.])")

#: Sides of an equation or inequality.
Relation = tuple[str, ...]


def is_installed() -> bool:
    """Whether the package that compares mathematics is installed."""
    return importlib.util.find_spec("math_verify") is not None


def same(answer: str, gold: str, places: int | None = None) -> bool | None:
    """Whether two expressions are the same; None without the package.

    Args:
        places: digits behind the point of `answer`, a decimal that may be cut or rounded.
    """
    return _verdict({"answer": answer, "gold": gold, "places": places})


def same_relation(answer: Relation, gold: Relation) -> bool | None:
    """Whether two equations or inequalities have the same solutions: one is the other, scaled."""
    return _verdict({"answer": answer, "gold": gold})


@functools.lru_cache(maxsize=1 << 16)
def _verdict_of(request: str) -> bool:
    with _LOCK:
        process = _process()
        answer = _answered(process, request, PATIENCE * LIMIT)
        if answer is None:
            _end(process)
            _process.cache_clear()
        return bool(answer)


def _verdict(request: dict[str, Any]) -> bool | None:
    return _verdict_of(json.dumps(request | {"limit": LIMIT})) if is_installed() else None


@functools.cache
def _process() -> subprocess.Popen[str]:
    path = os.pathsep.join(part for part in sys.path if part)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
    )
    atexit.register(_end, process)
    if (
        _answered(process, json.dumps({"answer": "1", "gold": "1", "limit": STARTING}), STARTING)
        is None
    ):
        raise RuntimeError("the process that compares mathematics does not start")
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _answered(process: subprocess.Popen[str], request: str, seconds: float) -> bool | None:
    """The process's answer; None where it does not come in time."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(request + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(seconds):
            return None
    line = process.stdout.readline()
    return bool(json.loads(line)) if line else None


def _as_fractions(text: str) -> str:
    """Decimals as fractions, which nothing rounds."""

    def fraction(match: re.Match[str]) -> str:
        return rf"\frac{{{(match[1] + match[2]).lstrip('0') or '0'}}}{{{10 ** len(match[2])}}}"

    return _DECIMAL.sub(fraction, text)


def _parsed(text: str) -> Any:
    import math_verify

    config = [math_verify.LatexExtractionConfig()]
    boxed = f"\\boxed{{{_as_fractions(text)}}}"
    return math_verify.parse(boxed, config, parsing_timeout=None)


def _compared(answer: Any, gold: Any, places: int | None = None) -> bool:
    import math_verify
    import sympy

    if isinstance(gold, list):
        return _scaled((*answer,), (*gold,))
    left, right = _parsed(answer), _parsed(gold)
    if not left or not right:
        return False
    first, second = left[0], right[0]
    if all(isinstance(x, sympy.Expr) and not x.free_symbols for x in (first, second)):
        return _near(first.doit(), second.doit(), places)
    how = {"float_rounding": 15, "numeric_precision": 60, "allow_set_relation_comp": True}
    return bool(math_verify.verify(right, left, timeout_seconds=None, **how))


def _near(first: Any, second: Any, places: int | None) -> bool:
    """Whether two constants are the same to thirty digits, or to a decimal's own."""
    import sympy

    if first.is_finite is False or second.is_finite is False:
        return bool(first == second)
    if places is not None:
        over = (abs(sympy.N(second, 60)) - abs(sympy.N(first, 60))) * 10**places
        return bool(first * second > 0 and -1 <= 2 * over < 2)
    difference = abs(sympy.N(first - second, 40))
    largest = max(abs(sympy.N(first, 40)), abs(sympy.N(second, 40)))
    return bool(difference <= largest * sympy.Rational(1, 10**30))


def _scaled(answer: Relation, gold: Relation) -> bool:
    """Whether the difference of the sides of one is that of the other, times a number."""
    import sympy

    sides = []
    for left, op, right in (answer, gold):
        both = [_parsed(side) for side in (left, right)]
        if not all(both) or any(isinstance(side[0], str) for side in both):
            return False
        turned = op in (">", r"\ge")
        whole = sympy.together(both[0][0] - both[1][0])
        sides.append((-whole if turned else whole, op.replace(">", "<").replace(r"\ge", r"\le")))
    (first, op), (second, other) = sides
    if op in ("=", r"\ne"):
        first, second = (sympy.expand(sympy.fraction(side)[0]) for side in (first, second))
    ratio = sympy.simplify(first / second)
    positive = ratio.is_positive or op in ("=", r"\ne")
    return bool(op == other and ratio.is_number and positive and ratio.is_finite and ratio != 0)


def _expired(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    """Answer a request a line, until there is none."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _expired)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request.pop("limit"))
        try:
            verdict = bool(_compared(**request))
        except Exception:  # whatever an expression does to a parser
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), flush=True)


if __name__ == "__main__":
    main()
