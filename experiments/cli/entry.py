"""Where the command line starts: which noun, which exit code, where output goes."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any, NoReturn

from attention.errors import InvalidValue
from experiments.cli.output import careful, shown
from experiments.cli.parser import Parser, add_json, nearest

#: Noun, which is also its module, and what it does. A module defines `EXAMPLES`,
#: `add_arguments(parser)` and `command(args, console)`; with `HANDS_ON` another program reads
#: what its parser does not know.
NOUNS = {
    "sweep": "the grid: models x data sets x backends x budgets; resumes by itself",
    "compare": "methods at one budget, against full attention and a random sample; one table",
    "run": "one configuration; prints the text of a few samples as they stream",
    "replay": "detectors over stored traces with other parameters, no decoding",
    "calibrate": "a detector's setting with a promise about false stops, from stored traces",
    "board": "every way of stopping over stored traces, at the same loss of answers",
    "report": "tables, figures and an HTML page again from a store; CSV and Parquet",
    "show": "one stored run: text, answer, cap, costs, where detectors fired",
    "why": "why a sparse text departs from full attention's: keys not read, and put back",
    "acceptance": "the share of full attention's tokens that a sparse method would have chosen",
    "curve": "compression-ratio curve of any text file or stored trace",
    "list": "backends, penalties, detectors, data sets, presets, with their sources",
    "bench": "a decode step of a method next to a step of full attention",
    "eval": "tasks of lm-evaluation-harness with the model lil",
}

#: What tells the OpenMP runtimes of torch (GNU's, LLVM's or Intel's) how threads wait.
_WAITING = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}

_EXAMPLES = """\
examples:
  lil sweep                                  the demo: what sparse attention costs, on this machine
  lil run --backend h2o --budget 64          watch a model lose its notes
  lil replay --set guardian.f=50,100         other stopping rules over the same traces
  lil show lil-out/demo medium/study/3 h2o 64
  lil curve essay.txt

`lil NOUN --help` shows the flags of a noun and examples.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code.

    0 done, 1 every run failed, 2 something the user can correct (one message), 130 interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Before torch is loaded: threads that wait actively hold up every step on a shared machine.
    if _WAITING.isdisjoint(os.environ):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    with careful():
        try:
            with _ended_like_ctrl_c():
                try:
                    return _dispatch(arguments)
                finally:  # while a fault can be reported
                    if sys.stdout:
                        sys.stdout.flush()
        except KeyboardInterrupt:
            print("lil: interrupted", file=sys.stderr)
            return 130
        except BrokenPipeError:
            return 1  # nobody reads a message any more
        except FloatingPointError as error:  # damaged weights, or a dtype too small for them
            message = f"{error}; another --dtype or other weights may help"
        except InvalidValue as error:
            message = shown(str(error))
        print(f"lil: error: {message}", file=sys.stderr)
        return 2


@contextlib.contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """A scheduler's SIGTERM and a closed terminal's SIGHUP end a command as Ctrl-C does."""

    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    numbers = []
    if threading.current_thread() is threading.main_thread():
        # A signal that is ignored stays so: nohup means it.
        both = (signal.SIGTERM, signal.SIGHUP)
        numbers = [number for number in both if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _dispatch(arguments: list[str]) -> int:
    for argument in arguments:
        if argument.startswith("--") and argument.endswith("=--"):  # argparse makes a list of it
            raise InvalidValue(argument.partition("=")[0], "--", "another value")
        try:
            os.fsencode(argument)
        except UnicodeEncodeError as error:
            raise InvalidValue("argument", argument, "whole characters") from error
    parser = Parser(
        prog="lil",
        description="Less is Less: what sparse attention saves, what it costs, how to stop it.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.set_defaults(json=False)
    add_json(parser)
    nouns = parser.add_subparsers(dest="noun", metavar="NOUN", title="nouns")
    chosen = next((a for a in arguments if not a.startswith("-")), None)
    module: Any = None
    for noun, line in NOUNS.items():
        sub = nouns.add_parser(noun, help=line, description=f"{line[0].upper()}{line[1:]}.")
        if noun == chosen:
            module = importlib.import_module(f"experiments.cli.commands.{noun}")
            sub.epilog = module.EXAMPLES
            sub.set_defaults(parser=sub)
            add_json(sub)
            module.add_arguments(sub)
    if chosen is not None and module is None:
        nouns_hint = f"no noun {chosen!r}: expected one of {', '.join(NOUNS)}"
        parser.error(nouns_hint + nearest(chosen, NOUNS))
    args, unknown = parser.parse_known_args(arguments)
    if args.version:
        print(version("lil-attention"))
        return 0
    if args.noun is None:
        parser.print_help(sys.stderr)
        return 2
    if unknown and not getattr(module, "HANDS_ON", False):
        near = nearest(unknown[0].partition("=")[0], args.parser.option_strings())
        args.parser.error(f"{args.parser.prog!r} has no {unknown[0]!r}{near}")
    args.arguments = arguments
    from experiments.cli.console import Console

    if not args.json:
        return int(module.command(args, Console()).code)
    out = sys.stdout
    # Whatever a library prints goes elsewhere: stdout holds the document alone.
    with contextlib.redirect_stdout(sys.stderr):
        result = module.command(args, Console(stderr=True))
    print(json.dumps(result.document, allow_nan=False), file=out, flush=True)
    return int(result.code)
