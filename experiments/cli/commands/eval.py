"""`lil eval`: lm-evaluation-harness with the model `lil`."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from experiments.cli.console import Console
from experiments.cli.parser import Done, Parser

EXAMPLES = """\
examples:
  lil eval --tasks gsm8k --model_args pretrained=Qwen/Qwen3-4B,backend=quest,budget=1024
  lil eval --tasks my_task --include_path tasks --batch_size 16 \\
      --model_args backend=h2o,budget=64,detector=guardian,detector_params.guardian.f=100
  lil eval --tasks gsm8k --apply_chat_template --limit 50 --gen_kwargs max_gen_toks=4096 \\
      --model_args pretrained=./my-model,penalty=lz,penalty_params.lz.alpha=0.2
  lil eval ls tasks

Arguments are those of `lm_eval` (`lm_eval run --help`), with the model `lil` where none is named;
--json prints its results. Needs `scripts/setup lm-eval`.
"""

#: Arguments are the harness's, which it checks itself.
HANDS_ON = True

#: Where the harness does so.
_ARGUMENTS = ("lm_eval._cli.", "lm_eval.config.", "lm_eval.evaluator.simple_evaluate")


def add_arguments(parser: Parser) -> None:
    """None of its own."""


def command(args: argparse.Namespace, console: Console) -> Done:  # noqa: ARG001 - the harness prints
    """Run the harness's own command line with our model."""
    given = list(args.arguments)
    given.remove("eval")
    rest = [one for one in given if one != "--json"]
    if not rest:
        raise InvalidValue("--tasks", None, "names of tasks, see `lil eval --help`")
    if importlib.util.find_spec("lm_eval") is None:
        allowed = "the package `lm-eval` to run it (`scripts/setup lm-eval`)"
        raise InvalidValue("eval", " ".join(rest), allowed)
    from lm_eval.__main__ import cli_evaluate

    from experiments.evals.harness import register

    register()
    is_run = rest[0] == "run" or rest[0].startswith("-")
    if is_run:
        rest = _with_model(rest)
    with (
        _results(rest, wanted=args.json and is_run) as (arguments, document),
        _command_line(["lm_eval", *arguments]),
    ):
        _evaluate(cli_evaluate, rest)
    return Done(document)


def _evaluate(harness: Callable[[], None], arguments: Sequence[str]) -> None:
    """Run the harness; what it says of its arguments is a message of ours."""
    try:
        harness()
    except (ValueError, OSError) as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        where = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"
        if not where.startswith(_ARGUMENTS):
            raise
        reason = str(error).strip().split("\n")[0]
        allowed = f"arguments that the harness takes ({reason})"
        raise InvalidValue("eval", " ".join(arguments), allowed) from error


def _with_model(arguments: Sequence[str]) -> list[str]:
    rest = [one for at, one in enumerate(arguments) if at or one != "run"]
    named = any(one in ("--model", "-M") or one.startswith("--model=") for one in rest)
    return ["run", *([] if named else ["--model", "lil"]), *rest]


@contextlib.contextmanager
def _command_line(arguments: list[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = arguments
    try:
        yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def _results(arguments: list[str], *, wanted: bool) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """The arguments, and a document that holds what the harness wrote once the block has ended."""
    document: dict[str, Any] = {}
    if not wanted:
        yield arguments, document
        return
    given = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    given.add_argument("--output_path", "-o")
    asked = given.parse_known_args(arguments)[0].output_path
    with tempfile.TemporaryDirectory() as temporary:
        where = Path(asked or temporary)
        folder = where.parent if where.suffix == ".json" else where
        before = set(folder.rglob("*.json"))
        yield [*arguments, *([] if asked else ["--output_path", temporary])], document
        written = sorted(set(folder.rglob("*.json")) - before)
        if not written:
            raise RuntimeError(f"the harness wrote no results into {folder}")
        document |= json.loads(written[-1].read_text(encoding="utf-8"))
