"""`lil compare`: a sweep of one model, data set and budget, shown in one table and one figure."""

from __future__ import annotations

import argparse
from dataclasses import replace

from attention.errors import InvalidValue
from experiments.cli.commands import sweep
from experiments.cli.console import Console
from experiments.cli.parser import Done, Parser
from experiments.cli.settings import config_from
from experiments.grid.config import Config
from experiments.grid.data.sets import expand
from experiments.grid.plan import build_backends

EXAMPLES = """\
examples:
  lil compare --model ./my-model --dataset gsm8k --budget 192
  lil compare --backend h2o,sink,quest        some methods; the reasoner that ships, in minutes

Full attention and `random`, as many tokens at random, always run. The same command again goes on
where it was stopped; with one more method it decodes that one alone.
"""


def add_arguments(parser: Parser) -> None:
    """Flags of `lil compare`."""
    own = {"datasets": "easy", "backends": "all", "budgets": "128"}
    sweep.add_arguments(parser, without=("penalties", "detectors"), own=own)
    parser.set_defaults(no_page=True)


def command(args: argparse.Namespace, console: Console) -> Done:
    """Decode what the store lacks, then show the table and the figure."""
    from attention.methods import METHODS  # torch, which --help does not wait for

    preset, config = config_from(args, penalties="none", detectors="none")
    names = config.backends
    if names == ("all",):
        # Prompts that stay may not fit in the budget: who wants them types the method.
        known = [e for e in METHODS.known() if "keep_prompt=True" not in map(str, e.parameters)]
        known = [e for e in known if {p.name for p in e.parameters if p.required} <= {"budget"}]
        usable = (e for e in known if not e.error)
        names = tuple(e.name for e in usable if METHODS.find(e.name).role == "method")
    config = replace(config, backends=(*names, "random"))
    if config.scorer == "none":
        raise InvalidValue("scorer", "none", "a scorer: solved problems are compared")
    _require_budget(config)
    budgets = {getattr(backend, "budget", None) for backend in build_backends(config)} - {None}
    several = {"model": config.models, "dataset": expand(config.datasets), "budget": budgets}
    for key, values in several.items():
        if len(values) > 1:
            raise InvalidValue(key, ",".join(map(str, values)), f"one {key}; `lil sweep` has more")
    return sweep.decode(args, console, preset, config, compare=True)


def _require_budget(config: Config) -> None:
    """Refuse a budget that methods do not take, with the nearest that each takes."""
    budget, refusals = config.budgets[0], []
    for name in config.backends:
        if refusal := _refusal(config, name, budget):
            near = (at for d in range(1, 2048) for at in (budget - d, budget + d) if at > 0)
            nearest = next((at for at in near if not _refusal(config, name, at)), None)
            if nearest is None:
                raise refusal  # of something else
            refusals.append(f"{name} takes {nearest} ({refusal.allowed})")
    if refusals:
        allowed = f"one that every method takes; the nearest: {', '.join(refusals)}"
        raise InvalidValue("budget", budget, allowed)


def _refusal(config: Config, name: str, budget: int) -> InvalidValue | None:
    try:
        build_backends(replace(config, backends=(name,), budgets=(budget,)))
    except InvalidValue as refusal:
        return refusal
    return None
