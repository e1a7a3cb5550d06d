"""`lil eval`: lm-evaluation-harness with the model `lil`."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
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


def _require_pairs(arguments: Sequence[str]) -> None:
    """Refuse model arguments of which a comma cut a value."""
    from lm_eval._cli.utils import split_top_level

    typed = (b for a, b in itertools.pairwise(arguments) if a in ("--model_args", "-a"))
    parts = [part for text in typed if text[:1] != "{" for part in split_top_level(text)]
    if lone := next((part for part in parts if "=" not in part), None):
        allowed = "NAME=VALUE,...; quotes hold a comma: 'pretrained=\"a,b\"'"
        raise InvalidValue("--model_args", lone, allowed)


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
    from lm_eval.api.registry import register_model
    from lm_eval.config.evaluate_config import EvaluatorConfig
    from lm_eval.utils import setup_logging

    from experiments.evals.harness import LilLM

    register_model("lil")(LilLM)  # the harness up to 0.4.13 looks for no entry points
    setup_logging()
    harness = HarnessCLI()
    if arguments[0] != "run" and not arguments[0].startswith("-"):
        harness.execute(harness._parser.parse_args(arguments))
        return Done({})
    arguments = ["run", *arguments[arguments[0] == "run" :]]
    _require_pairs(arguments)
    # Its own `parse_args` reads `sys.argv`, which belongs to the process.
    parsed = harness._parser.parse_args(arguments)
    if not any(a in ("--model", "-M") or a.startswith("--model=") for a in arguments):
        parsed.model = "lil"
    try:  # before the harness loads a model or a task
        EvaluatorConfig.from_cli(parsed)
    except (ValueError, TypeError, OSError) as error:
        reason = str(error).strip().split("\n")[0]
        allowed = f"arguments that the harness takes ({reason})"
        raise InvalidValue("eval", " ".join(arguments), allowed) from error
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
        return Done(json.loads(written[-1].read_text(encoding="utf-8")))
