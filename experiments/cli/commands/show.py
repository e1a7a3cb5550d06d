"""`lil show`: one stored run, all that is known of it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape

from experiments.cli.console import Console, notify, shortened, table
from experiments.cli.parser import Done, Parser
from experiments.cli.stores import add_scorer_flag, find, judged_studies
from experiments.grid.data.sets import labels as dataset_labels
from experiments.grid.detectors import labels
from experiments.grid.plan import Run
from experiments.grid.scoring import Judgement, judged, reason
from experiments.store.samples.replay import samples_of
from experiments.store.samples.sample import is_usable
from experiments.store.study import Study

EXAMPLES = """\
examples:
  lil show lil-out/demo 3fa9                  by the beginning of its id
  lil show lil-out/demo medium/study/3 h2o 64
      by what it is: problem, backend, budget; data set, penalty, model, 'sample 2' where needed
  lil show lil-out/demo 3 medium full --whole
"""

_COSTS = (
    *("prefill_sec", "decode_sec", "keys_read", "keys_read_mean", "keys_read_max"),
    *("keys_kept_max", "dense_layer_keys_read_mean", "cache_bytes_peak", "reused_tokens"),
    "batch_size",
)

_PLAIN = ("sweep", "status", "finish", "message", "tokens", "at_positions")


def add_arguments(parser: Parser) -> None:
    """Flags of `lil show`."""
    words = "the beginning of its id, or what it is: problem, backend, budget, ..."
    parser.add_argument("store", metavar="STORE", help="folder of a sweep")
    parser.add_argument("run", nargs="*", metavar="RUN", help=words)
    parser.add_argument("--whole", action="store_true", help="print prompt and output whole")
    add_scorer_flag(parser)


def command(args: argparse.Namespace, console: Console) -> Done:
    """Print one run: prompt, output, why its answer counts as it does, cap, costs, detectors."""
    studies = judged_studies(Study.each(Path(args.store)), args.scorer)
    study, run = find(studies, args.run)
    notify(study.warnings)
    document = _document(study, run)
    _print(document, args.whole, console)
    return Done(document)


def _document(study: Study, run: Run) -> dict[str, Any]:
    configuration, record = run.configuration, study.store.get(run.id)
    every = zip(labels(study.detectors), study.detectors, strict=True)
    detectors = [pair for pair in every if study.supports(pair[1], configuration)]
    plain, *watched = samples_of(
        run, record, study.caps(run), "none", detectors, study.store, study.scorers
    )
    trace = record.trace() if record is not None and is_usable(plain) else None
    gold, scorer, cap = run.problem.gold, run.problem.scorer, study.cap(run)
    text, judgement = None, Judgement(None)
    if trace is not None and plain.tokens is not None:
        pieces = trace.pieces[: plain.tokens] if plain.tokens < trace.tokens else trace.text_pieces
        text = b"".join(pieces).decode(errors="replace")
        ended = plain.status == "ok"
        judgement = judged(text, gold, scorer, study.scorers, item=run.item_id, ended=ended)
    full = None
    if not configuration.is_full:  # what this run is measured against
        other = study.plan.full(run)
        known, caps = study.store.get(other.id), study.caps(other)
        (sample,) = samples_of(other, known, caps, "none", [], study.store, study.scorers)
        names = ("status", "tokens", "correct")
        full = {"id": other.id, **{name: getattr(sample, name) for name in names}}
    datasets = dataset_labels([c.dataset for c in study.plan.configurations])
    return {
        "id": run.id,
        "model": configuration.model,
        "model_digest": configuration.model_digest,
        "dataset": datasets[configuration.dataset],
        "item_id": run.item_id,
        "sample_index": run.sample_index,
        "backend": configuration.backend["name"],
        "budget": configuration.budget,
        "backend_params": configuration.parameters,
        "penalties": [dict(penalty) for penalty in configuration.penalties],
        "sampling": dict(configuration.sampling),
        "dtype": configuration.dtype,
        **{name: getattr(plain, name) for name in _PLAIN},
        "stored_tokens": None if trace is None else trace.tokens,
        "cap": cap,
        "cap_from": _cap_from(study, run, cap),
        "prompt": None if trace is None else trace.prompt_bytes.decode(errors="replace"),
        "prompt_tokens": None if trace is None else len(trace.prompt_ids),
        "text": text,
        "answer": judgement.answer,
        "rule": judgement.rule,
        "gold": gold,
        "scorer": scorer,
        "correct": judgement.correct,
        "reason": None if text is None else reason(judgement, gold, scorer),
        "costs": {name: getattr(plain, name) for name in _COSTS},
        "detectors": [
            {"fired_at": x.stopped_at, **{name: getattr(x, name) for name in _OF_DETECTOR}}
            for x in watched
        ],
        "full": full,
    }


_OF_DETECTOR = ("detector", "action", "status", "tokens", "paid_tokens", "correct")


def _cap_from(study: Study, run: Run, cap: int) -> str:
    config, room = study.config, run.problem.room
    if room is not None and cap == room and not config.beyond_positions:
        return "what the model's positions leave behind the prompt"
    if run.configuration.is_full:
        return f"--max-new-tokens {config.max_new_tokens}"
    tokens = study.full_tokens(run)
    took = "an unknown number of" if tokens is None else f"{tokens:,}"
    flags = f"--cap {config.cap}, --max-new-tokens {config.max_new_tokens}"
    return f"{flags}; full attention took {took} tokens"


def _print(run: Mapping[str, Any], whole: bool, console: Console) -> None:
    budget = "" if run["budget"] is None else f" {run['budget']}"
    added = "".join(f" + {penalty['name']}" for penalty in run["penalties"])
    title = f"{run['item_id']} ({run['dataset']}), {run['backend']}{budget}{added}"
    console.rule(escape(title), style="dim", align="left")
    console.plain(f"run {run['id']}, sample {run['sample_index']}, model {run['model']}")
    if run["prompt"] is not None:
        console.plain(shortened(run["prompt"], "--whole", whole), style="dim")
    if run["text"] is not None:
        console.plain(f"\n{shortened(run['text'], '--whole', whole)}\n")
    for name, text in _lines(run).items():
        console.plain(f"{name:10}{text}")
    if run["detectors"]:
        rows = [
            (
                row["detector"],
                row["action"],
                "—" if row["fired_at"] is None else f"{row['fired_at']:,}",
                row["status"] if row["tokens"] is None else f"{row['tokens']:,}",
                _VERDICTS[row["correct"]],
            )
            for row in run["detectors"]
        ]
        names = ("detector", "then", "fired at", "tokens", "answer")
        console.print(table("detectors", names, rows, left=names[:2]))


def _lines(run: Mapping[str, Any]) -> dict[str, str]:
    """What is known of a run, by the name of each line."""
    lines = {"status": run["status"] + (f": {run['message']}" if run["message"] else "")}
    if (tokens := run["tokens"]) is not None:
        more = run["stored_tokens"] - tokens
        gold, rule = run["gold"], f" by {run['rule']}" if run["rule"] else ""
        accepted = " or ".join(gold) if isinstance(gold, tuple) else gold
        known = "no answer is known" if accepted is None else f"gold {accepted}"
        answer, verdict = run["answer"] or "none found", _VERDICTS[run["correct"]]
        lines["answer"] = f"{answer}{rule}, {known}, scorer {run['scorer']}: {verdict}"
        lines["because"] = str(run["reason"])
        if run["status"] == "capped":
            lines["because"] += f"; cut at {tokens:,} tokens"
        beyond = ", where the model's positions end or beyond" if run["at_positions"] else ""
        stored = f"; {more:,} more are stored" if more else ""
        lines["tokens"] = f"{tokens:,}, ended by {run['finish']}{beyond}{stored}"
        costs = [(name, cost) for name, cost in run["costs"].items() if cost is not None]
        lines["costs"] = ", ".join(
            f"{name} {cost:,.{0 if cost >= 100 or isinstance(cost, int) else 2}f}"
            for name, cost in costs
        )
    lines["cap"] = f"{run['cap']:,} ({run['cap_from']})"
    if run["sweep"] is not None:
        lines["sweep"] = run["sweep"]
    if (full := run["full"]) is not None and full["tokens"] is not None:
        lines["full"] = f"{full['tokens']:,} tokens, {_VERDICTS[full['correct']]}"
    return lines


_VERDICTS = {None: "not judged", True: "right", False: "wrong"}
