"""`lil run`: one configuration, its text as it streams."""

from __future__ import annotations

import argparse
import codecs
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

import lil
from attention.errors import InvalidValue
from experiments.cli.console import Console
from experiments.cli.open_store import say
from experiments.cli.parser import Done, Parser
from experiments.cli.plain_text import SHOWN, beginning_and_end, dim
from experiments.cli.settings import add_config_flags, config_from
from experiments.grid import data, models, positions, scoring
from experiments.grid.config import Config
from experiments.grid.data.prompts import unknown_words
from experiments.grid.data.sets import stream_name
from experiments.grid.detectors import build_detectors
from experiments.grid.plan import (
    build_backends,
    build_penalties,
    describe_penalties,
    lacks_budget,
    takes_budget,
)
from experiments.sweep.sweep import require_supported

if TYPE_CHECKING:  # `--help` does not wait for torch
    from attention import Backend
    from lil import Detector

EXAMPLES = """\
examples:
  lil run                                        three easy problems under full attention
  lil run --backend h2o --budget 64 --dataset medium
  lil run --backend h2o --budget 64 --dataset medium --detector guardian
      live: Guardian ends the text while it is written, its evidence is printed
  lil run --backend h2o --budget 64 --dataset medium --penalty lz
  lil run --backend quest --budget 64 --dataset medium --speculate 8
      full attention's text: quest drafts eight tokens, one forward checks them
  lil run --model ./my-model --dataset problems.jsonl --limit 1 --max-new-tokens 500
  lil run --model ./my-model --prompt "Why is the sky blue?" --backend quest --budget 256
      one prompt of yours, through the model's chat template; no data set, nothing to judge
  lil run --prompt - < prompt.txt
      the same from a file or a pipe

Nothing is stored; `lil sweep` stores.
"""

_NOT_HERE = (
    *("backends", "budgets", "cap", "null", "batch_size", "samples_per_problem"),
    *("workers", "executor", "runtime", "address", "gpus_per_worker"),
)
#: What says which problems, where a prompt is not typed.
_PROBLEMS = ("datasets", "split", "limit", "offset", "sample", "columns", "scorer")
_OWN = {"detectors": "none", "penalties": "none", "limit": "3", "datasets": "easy"}


def add_arguments(parser: Parser) -> None:
    """Flags of `lil run`."""
    group = parser.add_argument_group("configuration")
    group.add_argument("--backend", default="full", metavar="NAME", help="default: full")
    group.add_argument("--budget", metavar="N", help="tokens one decode query may attend to")
    group.add_argument(
        "--speculate",
        metavar="K",
        help="draft K tokens under the backend and check them under full attention, whose output "
        "it is then",
    )
    group = parser.add_argument_group("a prompt of yours, instead of a data set")
    group.add_argument(
        "--prompt",
        metavar="TEXT|-",
        help="decode this alone; - reads it from standard input",
    )
    parser.add_argument(
        "--show-prompt",
        action="store_true",
        help=f"print prompts whole, as the model sees them (default: {SHOWN:,} characters)",
    )
    add_config_flags(parser, without=_NOT_HERE, own=_OWN)


class Echo:
    """Prints tokens as they come, whole characters only, and what was done after a verdict."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def token(self, _index: int, _token: int, piece: bytes) -> None:
        """Print a token's text."""
        text = self._decoder.decode(piece)
        self._console.print(text, end="", markup=False, highlight=False, soft_wrap=True)

    def action(self, _index: int, done: Mapping[str, Any]) -> None:
        """Say what is done; what comes next follows it."""
        self._decoder.reset()
        self._console.print()
        self._console.print(
            f"[{done['detector']} at token {done['step']}: {done['name']}, {done['kept']} kept, "
            f"{done['dropped']} dropped, {done['cue_tokens']} given; goes on with]",
            style="bold",
            markup=False,
            highlight=False,
        )


def command(args: argparse.Namespace, console: Console) -> Done:
    """Decode a few problems one after the other and print them."""
    if args.limit is None and args.sample is None:
        args.limit = "3"
    text = _typed(args)
    budgets = args.budget if args.budget is not None else "1"
    # Nothing is compared, so no null stands behind the one that was asked for.
    _, config = config_from(args, backends=args.backend, budgets=budgets, null="none")
    *_, entry = config.backends
    if args.budget is None and lacks_budget(config, entry):
        raise InvalidValue("budget", None, f"--budget N with --backend {args.backend}")
    if args.budget is not None and not takes_budget(entry):
        allowed = f"none with --backend {args.backend}, which attends to every token"
        raise InvalidValue("budget", args.budget, allowed)
    backend = build_backends(config)[-1]
    *_, penalties = every = build_penalties(config)
    if len(every) > 2:
        raise InvalidValue("penalty", ",".join(config.penalties), "one penalty, or none")
    detectors = build_detectors(config)
    drafts = _drafts(args.speculate, backend, detectors)
    device = models.resolve_device(config.device)
    problems, said = _problems(config, text)
    for name, item in problems:
        scoring.require(item.scorer, name, [item.gold])
    scorers = scoring.loaded(config.scorer, *{item.scorer for _, item in problems})
    say(said, Console(stderr=True))
    if len(config.models) > 1:
        raise InvalidValue("model", ",".join(config.models), "one model")
    models.quiet_transformers()
    with Console(stderr=True).status("loading"):
        models.use_threads(config.threads)
        source = models.find(config.models[0], config.revision, weights=config.weights)
        loaded = models.load(source, config.dtype, device, config.device_map)
        require_supported(loaded, [backend], config.engine)
    prompts = [item.prompt_ids(loaded.tokenizer) for _, item in problems]
    say(unknown_words(loaded.tokenizer, prompts, config.models[0]), Console(stderr=True))
    lengths = [
        positions.Prompt(name, item.id, len(ids))
        for (name, item), ids in zip(problems, prompts, strict=True)
    ]
    most = positions.positions(source)
    positions.require_room(source.name, most, lengths, beyond=config.beyond_positions)

    options = config.decode_options()
    if config.compile == "on":
        options["compile"] = "on"  # no worker has compiled it before
    found = []
    for (name, item), ids in zip(problems, prompts, strict=True):
        console.rule(escape(f"{name} {item.id}".strip()), style="dim")
        shown = loaded.tokenizer.decode(ids)
        dim(beginning_and_end(shown, args.show_prompt, "--show-prompt"), console)
        echo = Echo(console)
        (trace,) = lil.decode(
            loaded.model,
            loaded.tokenizer,
            [lil.Request(ids, item_id=stream_name(name, item.id))],
            backend=backend,
            penalties=penalties,
            detectors=detectors,
            max_new_tokens=config.max_new_tokens,
            token_bytes=loaded.token_bytes,
            on_token=echo.token,
            on_action=echo.action,
            speculate=drafts,
            **options,
        )
        if trace.action is not None:
            console.print()
            console.print(f"evidence: {trace.action['evidence']}", end="", markup=False)
        document = _document(name, item, trace, shown, scorers)
        console.print()
        _say(document, console)
        found.append(document)
    about = {"name": backend.name, **backend.params()}
    return Done(
        {
            "model": source.name,
            "backend": about,
            "penalties": list(describe_penalties(penalties)),
            "seed": config.seed,
            "samples": found,
        }
    )


def _drafts(given: str | None, backend: Backend, detectors: Sequence[Detector]) -> int:
    """Tokens to draft, checked before a model is loaded.

    Raises:
        InvalidValue: no number, or what cannot be checked under full attention.
    """
    drafts: Any = int(given) if given is not None and given.isdecimal() else given or 0
    return lil.DecodeOptions(backend=backend, detectors=detectors, speculate=drafts).speculate


def _typed(args: argparse.Namespace) -> str | None:
    """The prompt that was typed or piped; None where problems of a data set are meant.

    Raises:
        InvalidValue: a data set, or what chooses in one, beside it.
    """
    if args.prompt is None:
        return None
    for key in _PROBLEMS:
        given = getattr(args, key)
        if given is not None and given != _OWN.get(key):
            allowed = "nothing beside --prompt, which is the only problem"
            raise InvalidValue(key.removesuffix("s") if key == "datasets" else key, given, allowed)
    if args.prompt != "-":
        return str(args.prompt)
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidValue("prompt", "-", f"text on standard input ({error.reason})") from error


def _problems(config: Config, text: str | None) -> tuple[list[tuple[str, data.Item]], list[str]]:
    """The problems with their data sets' names, and what should be said of those."""
    if text is not None:
        return [("", data.typed(text, data.ProblemChoice.of(config)))], []
    sets = data.load_all(config)
    said = [line for one in sets.values() for line in one.said]
    return [(name, item) for name, one in sets.items() for item in one.items], said


def _document(
    name: str, item: data.Item, trace: lil.Trace, prompt: str, scorers: scoring.Scorers
) -> dict[str, Any]:
    ended = trace.finish == "eos"
    judged = scoring.judged(trace.text, item.gold, item.scorer, scorers, item=item.id, ended=ended)
    return {
        "dataset": name or None,
        "item_id": item.id,
        "prompt": item.question,
        "prompt_text": prompt,
        "prompt_tokens": len(trace.prompt_ids),
        "text": trace.text,
        "gold": item.gold,
        "scorer": item.scorer,
        "correct": judged.correct,
        "answer": judged.answer,
        "rule": judged.rule,
        "tokens": trace.tokens,
        "at_positions": trace.at_positions,
        "finish": trace.finish,
        "evidence": None if trace.evidence is None else dict(trace.evidence),
        "action": None if trace.action is None else dict(trace.action),
        "decoded_tokens": trace.decoded_tokens,
        "keys_read_mean": trace.keys_read_mean,
        "keys_read_max": trace.keys_read_max,
        "cache_bytes_peak": trace.cache_bytes_peak,
        "prefill_sec": trace.prefill_sec,
        "decode_sec": trace.decode_sec,
        "speculation": None if trace.speculation is None else dict(trace.speculation),
    }


def _say(document: dict[str, Any], console: Console) -> None:
    gold = document["gold"]
    accepted = " or ".join(gold) if isinstance(gold, tuple) else gold
    right = f", right by {document['rule']}"
    verdict = {None: "", True: right, False: f", wrong, {accepted} is right"}[document["correct"]]
    mean = document["keys_read_mean"]
    drafts = document["speculation"]
    keys = "" if mean is None else f", {mean:.0f} keys read a {'token' if drafts else 'step'}"
    if drafts:
        looked_at = drafts["accepted"] + drafts["rejected"]
        keys += f", {drafts['accepted']} of {looked_at} drafts kept"
    end = "the end of the model's positions" if document["at_positions"] else document["finish"]
    console.print(
        f"[{document['tokens']} tokens, ended by {end}{verdict}{keys}, "
        f"{document['decode_sec'] or 0.0:.1f} s]",
        style="bold",
        markup=False,
        highlight=False,
    )
    if document["evidence"]:
        console.print(f"evidence: {document['evidence']}", markup=False)
