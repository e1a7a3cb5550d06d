"""`lil run`: one configuration, its text as it streams."""

from __future__ import annotations

import argparse
import codecs
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.markup import escape

import lil
from attention.errors import InvalidValue
from experiments.cli.console import Console, notify, shortened
from experiments.cli.parser import Done, Parser, whole_number
from experiments.cli.settings import add_config_flags, config_from
from experiments.grid import data, models, positions, scoring
from experiments.grid.config import Config
from experiments.grid.data.prompts import unknown_words
from experiments.grid.data.sets import stream_name
from experiments.grid.detectors import build_detectors
from experiments.grid.plan import build_backends, build_penalties, lacks_budget, takes_budget
from experiments.sweep.sweep import require_supported

if TYPE_CHECKING:
    from attention import Backend

EXAMPLES = """\
examples:
  lil run                                        three easy problems under full attention
  lil run --backend h2o --budget 64 --dataset medium --detector guardian
      live: Guardian ends the text while it is written, its evidence is printed
  lil run --backend quest --budget 64 --dataset medium --speculate 8
      full attention's text: quest drafts eight tokens, one forward checks them
  lil run --model ./my-model --dataset problems.jsonl --limit 1 --max-new-tokens 500
  lil run --model ./my-model --prompt "Why is the sky blue?" --backend quest --budget 256
      one prompt of yours, through the model's chat template; nothing to judge

Nothing is stored; `lil sweep` stores.
"""

#: Keys of a configuration that have no meaning for a single run.
_NOT_HERE = (
    *("backends", "budgets", "cap", "null", "batch_size", "samples_per_problem"),
    *("workers", "runtime"),
)
#: What says which problems, where a prompt is not typed.
_PROBLEMS = ("datasets", "split", "limit", "offset", "sample", "columns", "scorer")
_OWN = {"detectors": "none", "penalties": "none", "limit": "3", "datasets": "easy"}


def add_arguments(parser: Parser) -> None:
    """Flags of `lil run`."""
    group = parser.add_argument_group("configuration")
    group.add_argument("--backend", default="full", metavar="NAME", help="default: full")
    group.add_argument("--budget", metavar="N", help="tokens one decode query may attend to")
    drafts = "draft K tokens under the backend and check them under full attention"
    group.add_argument("--speculate", metavar="K", help=f"{drafts}, whose output it is then")
    group = parser.add_argument_group("a prompt of yours, instead of a data set")
    group.add_argument("--prompt", metavar="TEXT|-", help="decode it; - reads standard input")
    add_config_flags(parser, without=_NOT_HERE, own=_OWN)


@dataclass(frozen=True)
class _Options:
    """What a command line asks for, checked before a model is loaded."""

    config: Config
    backend: Backend
    penalties: tuple[lil.Penalty, ...]
    detectors: list[lil.Detector]
    drafts: int
    problems: list[tuple[str, data.Item]]  # with the names of their data sets
    scorers: scoring.Scorers

    @classmethod
    def of(cls, args: argparse.Namespace) -> _Options:
        """Raises InvalidValue for a value that cannot be used, or flags that exclude each other."""
        text = _prompt(args)
        if args.limit is None and args.sample is None:
            args.limit = _OWN["limit"]
        budgets = args.budget if args.budget is not None else "1"
        # Nothing is compared, so no null follows the backend.
        _, config = config_from(args, backends=args.backend, budgets=budgets, null="none")
        from attention.methods import METHODS  # torch, which --help does not wait for

        spec = METHODS.spec(config.backends[-1])
        if args.budget is None and lacks_budget(config, spec):
            raise InvalidValue("budget", None, f"--budget N with --backend {args.backend}")
        if args.budget is not None and not takes_budget(spec):
            allowed = f"none with --backend {args.backend}, which attends to every token"
            raise InvalidValue("budget", args.budget, allowed)
        *_, penalties = every = build_penalties(config)
        if len(every) > 2:
            raise InvalidValue("penalty", ",".join(config.penalties), "one penalty, or none")
        if len(config.models) > 1:
            raise InvalidValue("model", ",".join(config.models), "one model")
        backend, detectors = build_backends(config)[-1], build_detectors(config)
        drafts = whole_number("speculate", args.speculate or "0", 0)
        lil.DecodeOptions(backend=backend, detectors=detectors, speculate=drafts)  # checks them
        models.resolve_device(config.device)
        if text is not None:
            problems = [("", data.typed(text, data.ProblemChoice.of(config)))]
        else:
            sets = data.load_all(config)
            notify(line for loaded in sets.values() for line in loaded.notices)
            problems = [(name, item) for name, loaded in sets.items() for item in loaded.items]
        for name, item in problems:
            scoring.require(item.scorer, name, [item.gold])
        scorers = scoring.loaded(config.scorer, *{item.scorer for _, item in problems})
        return cls(config, backend, penalties, detectors, drafts, problems, scorers)


class _Echo:
    """Prints tokens as they come, whole characters only, and each action of a detector."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def token(self, _index: int, _token: int, piece: bytes) -> None:
        self._console.plain(self._decoder.decode(piece), end="")

    def action(self, _index: int, action: Mapping[str, Any]) -> None:
        self._decoder.reset()
        self._console.plain(
            f"\n[{action['detector']} at token {action['step']}: {action['name']}, "
            f"{action['kept']} kept, {action['dropped']} dropped, {action['cue_tokens']} given; "
            "goes on with]",
            style="bold",
        )


def command(args: argparse.Namespace, console: Console) -> Done:
    """Decode a few problems one after the other and print them."""
    options = _Options.of(args)
    config = options.config
    models.quiet_transformers()
    with Console(stderr=True).status("loading"):
        models.use_threads(config.threads)
        source = models.find(config.models[0], config.revision, weights=config.weights)
        device = models.resolve_device(config.device)
        loaded = models.load(source, config.dtype, device)
        prompts = [item.prompt_ids(loaded.tokenizer) for _, item in options.problems]
        require_supported(loaded, [options.backend], config.engine, [*map(len, prompts)])
    notify(unknown_words(loaded.tokenizer, prompts, config.models[0]))
    problems = list(zip(options.problems, prompts, strict=True))
    lengths = [positions.Prompt(name, item.id, len(ids)) for (name, item), ids in problems]
    most = positions.positions(source)
    positions.require_room(source.name, most, lengths, beyond=config.beyond_positions)

    decoding = config.decode_options()
    if config.compile == "on":
        decoding["compile"] = "on"  # no worker has compiled it before
    documents = []
    for (name, item), ids in problems:
        console.rule(escape(f"{name} {item.id}".strip()), style="dim")
        prompt = loaded.tokenizer.decode(ids)
        console.plain(shortened(prompt, "--json"), style="dim")
        echo = _Echo(console)
        (trace,) = lil.decode(
            loaded.model,
            loaded.tokenizer,
            [lil.Request(ids, item_id=stream_name(name, item.id))],
            backend=options.backend,
            penalties=options.penalties,
            detectors=options.detectors,
            max_new_tokens=config.max_new_tokens,
            token_bytes=loaded.token_bytes,
            on_token=echo.token,
            on_action=echo.action,
            speculate=options.drafts,
            **decoding,
        )
        document = _document(name, item, trace, prompt, options.scorers)
        console.print()
        _print(document, console)
        documents.append(document)
    about = {
        "model": source.name,
        "backend": {"name": options.backend.name, **options.backend.params()},
        "penalties": [penalty.identity() for penalty in options.penalties],
        "seed": config.seed,
    }
    return Done(about | {"samples": documents})


def _prompt(args: argparse.Namespace) -> str | None:
    """The prompt that was typed or piped; None where problems of a data set are meant."""
    if args.prompt is None:
        return None
    for key in _PROBLEMS:
        flag = getattr(args, key)
        if flag is not None and flag != _OWN.get(key):
            allowed = "nothing with --prompt, which is the only problem"
            raise InvalidValue(key.removesuffix("s") if key == "datasets" else key, flag, allowed)
    if args.prompt != "-":
        return str(args.prompt)
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidValue("prompt", "-", f"text on standard input ({error.reason})") from error


#: What a document takes over from a trace.
_OF_TRACE = (
    *("text", "tokens", "at_positions", "finish", "decoded_tokens", "keys_read_mean"),
    *("keys_read_max", "cache_bytes_peak", "prefill_sec", "decode_sec"),
)


def _document(
    name: str, item: data.Item, trace: lil.Trace, prompt: str, scorers: scoring.Scorers
) -> dict[str, Any]:
    ended = trace.finish == "eos"
    judged = scoring.judged(trace.text, item.gold, item.scorer, scorers, item=item.id, ended=ended)
    records = {key: getattr(trace, key) for key in ("evidence", "action", "speculation")}
    return {
        "dataset": name or None,
        "item_id": item.id,
        "prompt": item.question,
        "prompt_text": prompt,
        "prompt_tokens": len(trace.prompt_ids),
        "gold": item.gold,
        "scorer": item.scorer,
        "correct": judged.correct,
        "answer": judged.answer,
        "rule": judged.rule,
        **{key: getattr(trace, key) for key in _OF_TRACE},
        **{key: None if record is None else dict(record) for key, record in records.items()},
    }


def _print(document: dict[str, Any], console: Console) -> None:
    gold = document["gold"]
    accepted = " or ".join(gold) if isinstance(gold, tuple) else gold
    right = f", right by {document['rule']}"
    verdict = {None: "", True: right, False: f", wrong, {accepted} is right"}[document["correct"]]
    mean, drafts = document["keys_read_mean"], document["speculation"]
    keys = "" if mean is None else f", {mean:.0f} keys read a {'token' if drafts else 'step'}"
    if drafts:
        checked = drafts["accepted"] + drafts["rejected"]
        keys += f", {drafts['accepted']} of {checked} drafts accepted"
    end = "the end of the model's positions" if document["at_positions"] else document["finish"]
    seconds = f"{document['decode_sec'] or 0.0:.1f} s"
    line = f"[{document['tokens']} tokens, ended by {end}{verdict}{keys}, {seconds}]"
    console.plain(line, style="bold")
    if document["evidence"]:
        console.plain(f"evidence: {document['evidence']}")
