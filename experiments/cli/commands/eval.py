"""`lil eval`: lm-evaluation-harness with the model `lil`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

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


def add_arguments(parser: Parser) -> None:
    """None of its own."""


def command(args: argparse.Namespace, console: Console) -> Done:  # noqa: ARG001 - the harness prints
    """Run the harness's own command line with our model."""
    arguments = list(args.arguments)
    arguments.remove("eval")
    arguments = [argument for argument in arguments if argument != "--json"]
    if not arguments:
        raise InvalidValue("--tasks", None, "names of tasks, see `lil eval --help`")
    if importlib.util.find_spec("lm_eval") is None:
        allowed = "the package `lm-eval` to run it (`scripts/setup lm-eval`)"
        raise InvalidValue("eval", " ".join(arguments), allowed)
    from lm_eval._cli import HarnessCLI
    from lm_eval.utils import setup_logging

    from experiments.evals.harness import register

    register()
    setup_logging()
    harness = HarnessCLI()
    if arguments[0] != "run" and not arguments[0].startswith("-"):
        harness.execute(harness._parser.parse_args(arguments))
        return Done({})
    arguments = ["run", *arguments[arguments[0] == "run" :]]
    # Its own `parse_args` reads `sys.argv`, which belongs to the process.
    parsed = harness._parser.parse_args(arguments)
    if not any(a in ("--model", "-M") or a.startswith("--model=") for a in arguments):
        parsed.model = "lil"
    _require_valid(parsed, arguments)
    if not args.json:
        harness.execute(parsed)
        return Done({})
    with tempfile.TemporaryDirectory() as temporary:
        parsed.output_path = parsed.output_path or temporary
        path = Path(parsed.output_path)
        folder = path.parent if path.suffix == ".json" else path
        before = set(folder.rglob("*.json"))
        harness.execute(parsed)
        written = sorted(set(folder.rglob("*.json")) - before)
        if not written:
            raise RuntimeError(f"the harness wrote no results into {folder}")
        return Done(json.loads(written[-1].read_text(encoding="utf-8")))


def _require_valid(parsed: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Refuse what the harness does not take, before it loads a model or a task."""
    from lm_eval.config.evaluate_config import EvaluatorConfig

    try:
        EvaluatorConfig.from_cli(parsed)
    except (ValueError, TypeError, OSError) as error:
        reason = str(error).strip().split("\n")[0]
        allowed = f"arguments that the harness takes ({reason})"
        raise InvalidValue("eval", " ".join(arguments), allowed) from error
