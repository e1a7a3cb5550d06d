"""`lil show`: one stored run, all that is known of it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict

from rich.markup import escape
from rich.table import Table

from attention.errors import InvalidValue
from attention.spec import split
from experiments.cli.console import Console
from experiments.cli.open_store import add_scorer_flag, say
from experiments.cli.parser import Done, Parser
from experiments.cli.plain_text import beginning_and_end, dim, ending
from experiments.grid.answers import boxed
from experiments.grid.data.sets import labels as dataset_labels
from experiments.grid.plan import Run
from experiments.grid.scoring import Judgement, correct, judged, reason
from experiments.store import manifest
from experiments.store.files.records import Record
from experiments.store.labels import labels, penalty_labels
from experiments.store.samples.replay import samples_of
from experiments.store.samples.sample import Sample, is_usable
from experiments.store.study import Study
from lil import Trace

EXAMPLES = """\
examples:
  lil show lil-out/demo 3fa9                  by the beginning of its id
  lil show lil-out/demo medium/study/3 h2o 64
      by what it is: problem, backend, budget; data set, penalty, model, 'sample 2' where it takes
      more to tell it from others
  lil show lil-out/demo 3 medium full --whole
      prompt and output to their last character
  lil show lil-out/demo 3fa9 --json

`lil curve STORE:ID` draws how its text compresses; `lil report` writes a page of all of them.
"""

_COSTS = (
    "prefill_sec",
    "decode_sec",
    "keys_read",
    "keys_read_mean",
    "keys_read_max",
    "keys_kept_max",
    "dense_layer_keys_read_mean",
    "cache_bytes_peak",
    "reused_tokens",
    "batch_size",
)

#: Answers before the last that are named, the newest.
_OTHERS = 5

#: Runs that a message names.
_NAMED = 6

#: Characters of an id that are enough to mean one: a shorter word is a problem's number.
_LEAST = 4


def add_arguments(parser: Parser) -> None:
    """Flags of `lil show`."""
    parser.add_argument("store", metavar="STORE", help="folder of a sweep")
    parser.add_argument(
        "run",
        nargs="*",
        metavar="RUN",
        help="the beginning of its id, or what it is: problem, backend, budget, ...",
    )
    parser.add_argument("--whole", action="store_true", help="print prompt and output whole")
    add_scorer_flag(parser)


def command(args: argparse.Namespace, console: Console) -> Done:
    """Print one run: prompt, output, why its answer counts as it does, cap, costs, detectors."""
    study, run = find(studies_of(Path(args.store), args.scorer), args.run)
    say(study.warnings, Console(stderr=True))
    document = _document(study, run)
    _print(document, args.whole, console)
    return Done(document)


# ---------------------------------------------------------------- which run is meant


def find(studies: Sequence[Study], words: Sequence[str]) -> tuple[Study, Run]:
    """The run that is meant.

    Args:
        studies: of a store, the newest first.
        words: the beginning of its id; or each of them a part of what it is: problem, backend,
            budget, data set, penalty or none, model, a parameter of the backend as `page=16` or in
            brackets behind its name, `sample N`.

    Raises:
        InvalidValue: no run is that, or several are.
    """
    asked = " ".join(words)
    every = [(study, run, told) for study in studies for run, told in _told(study)]
    if not every:
        raise InvalidValue("run", asked, "a run, of which this store has planned none")
    if not words:
        raise InvalidValue("run", asked, f"one of {_some(every)}, by id or by what it is")
    named_so = any(_is(word, told) for word in words for *_, told in every)
    if len(words) == 1 and len(words[0]) >= _LEAST and not named_so:
        # Two sweeps may have planned one run.
        by_id = {run.id: (study, run) for study, run, _ in reversed(every)}
        fit = [one for id_, one in by_id.items() if id_.startswith(words[0].lower())]
        if len(fit) == 1:
            return fit[0]
    for study in studies:  # the newest that has it
        named = [(study, run, told) for run, told in _told(study)]
        mine = [one for one in named if all(_is(word, one[2]) for word in words)]
        if len(mine) == 1:
            return mine[0][0], mine[0][1]
        if mine:
            allowed = f"what one run alone is; {len(mine)} are: {_some(mine)}"
            raise InvalidValue("run", asked, allowed)
    known = [part for _, _, told in every for part in told]
    wrong = next((word for word in words if not any(_is(word, told) for *_, told in every)), asked)
    allowed = f"the beginning of an id, or what a run is, such as {_some(every)}"
    raise InvalidValue("run", wrong, allowed, list(dict.fromkeys(known)))


def _told(study: Study) -> Iterator[tuple[Run, tuple[str, ...]]]:
    """Each run with the words for it: the id of its problem, backend and budget first."""
    called = dataset_labels([cell.dataset for cell in study.plan.configurations])
    for cell, penalty in zip(study.plan.configurations, penalty_labels(study.plan), strict=True):
        budget = [] if cell.budget is None else [str(cell.budget)]
        rest = [called[cell.dataset], cell.model, penalty]
        rest += [f"{name}={value}" for name, value in _params(cell.backend).items()]
        for run in study.plan.runs(cell):
            parts = [run.item_id, str(cell.backend["name"]), *budget, *rest]
            if study.plan.samples_per_problem > 1:
                parts.append(f"sample {run.sample_index}")
            yield run, tuple(parts)


def _params(backend: Mapping[str, Any]) -> dict[str, Any]:
    """A backend's parameters but for its budget."""
    return {name: value for name, value in backend.items() if name not in ("name", "budget")}


def _is(word: str, told: Sequence[str]) -> bool:
    """Whether a word stands for a part; of a problem's id the last part is enough.

    `name(a=1,b=2)` stands for all of its parts.
    """
    if word in told or word == PurePosixPath(told[0]).name:
        return True
    name, bracket, inside = word.partition("(")
    return inside.endswith(")") and {name, *split(inside[:-1])} <= {*told} and bool(bracket)


def _some(runs: Sequence[tuple[Study, Run, tuple[str, ...]]]) -> str:
    """The first of some runs by id, with what tells them from each other."""
    everywhere = set.intersection(*({*told} for *_, told in runs))
    shown = []
    for _, run, told in runs[:_NAMED]:
        apart = [part for part in told[4:] if part not in everywhere]
        shown.append(f"{run.id[:8]} ({' '.join([*told[:4], *apart])})")
    return ", ".join(shown) + (f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else "")


def studies_of(folder: Path, scorer: str | None) -> list[Study]:
    """Every sweep of a store, those that fit together as one, judged by a scorer if one is named.

    Raises:
        InvalidValue: no store there, or a scorer that it does not name.
    """
    studies = Study.each(folder)
    if scorer is None:
        return studies
    needing = [study for study in studies if study.needs_any(scorer)]
    if not needing:
        studies[0].judged_by(scorer)  # which says what there is
    return [study.judged_by(scorer) if study in needing else study for study in studies]


# ---------------------------------------------------------------- what is known of it


class RecordPlace(TypedDict):
    """Where in a store a record lies: a file, and bytes of it."""

    file: str
    offset: int
    length: int


class DetectorOutcome(TypedDict):
    """What a detector leaves of a run; `fired_at` is None where it does not fire."""

    detector: str
    action: str
    status: str
    fired_at: int | None
    tokens: int | None
    paid_tokens: int | None
    correct: bool | None


class FullRun(TypedDict):
    """The full-attention run that another is measured against."""

    id: str
    status: str
    tokens: int | None
    correct: bool | None


def _document(study: Study, run: Run) -> dict[str, Any]:
    cell, record = run.configuration, study.store.get(run.id)
    detectors = study.detectors
    able = [
        (label, one)
        for label, one in zip(labels(detectors), detectors, strict=True)
        if study.supports(one, cell)
    ]
    cap, caps = study.cap(run), study.caps(run)
    plain, *watched = samples_of(run, record, caps, "none", able, study.store, study.scorers)
    trace = record.trace() if record is not None and is_usable(plain) else None
    text = None if trace is None or plain.tokens is None else _text(trace, plain.tokens)
    gold, scorer = run.problem.gold, run.problem.scorer
    found = Judgement(None)
    if text is not None:
        ended = plain.status == "ok"
        found = judged(text, gold, scorer, study.scorers, item=run.item_id, ended=ended)
    called = dataset_labels([one.dataset for one in study.plan.configurations])
    return {
        "id": run.id,
        "model": cell.model,
        "model_digest": cell.model_digest,
        "dataset": called[cell.dataset],
        "item_id": run.item_id,
        "sample_index": run.sample_index,
        "backend": cell.backend["name"],
        "budget": cell.budget,
        "backend_params": _params(cell.backend),
        "penalties": [dict(one) for one in cell.penalties],
        "sampling": dict(cell.sampling),
        "dtype": cell.dtype,
        "sweep": plain.sweep,
        "status": plain.status,
        "finish": plain.finish,
        "message": plain.message,
        "tokens": plain.tokens,
        "stored_tokens": None if trace is None else trace.tokens,
        "cap": cap,
        "cap_from": _cap_from(study, run, cap),
        "at_positions": plain.at_positions,
        "prompt": None if trace is None else trace.prompt_bytes.decode(errors="replace"),
        "prompt_tokens": None if trace is None else len(trace.prompt_ids),
        "text": text,
        "answer": found.answer,
        "rule": found.rule,
        "gold": gold,
        "scorer": scorer,
        "correct": found.correct,
        "reason": None if text is None else reason(found, gold, scorer),
        "boxed": None if text is None else boxed(text),
        "correct_of_all_stored": None if trace is None else _right(study, run, trace),
        "gold_from": _plan_of(study, run),
        "record": None if record is None else _place(record),
        "costs": {name: getattr(plain, name) for name in _COSTS},
        "compression_ratio": _ratio(plain),
        "detectors": [_outcome(one) for one in watched],
        "full": None if cell.is_full else _full(study, run),
    }


def _text(trace: Trace, tokens: int) -> str:
    pieces = trace.pieces[:tokens] if tokens < trace.tokens else trace.text_pieces
    return b"".join(pieces).decode(errors="replace")


def _right(study: Study, run: Run, trace: Trace) -> bool | None:
    """Whether all that is stored of a run solves its problem, what its cap cuts off included."""
    gold, scorer, ended = run.problem.gold, run.problem.scorer, trace.finish == "eos"
    return correct(trace.text, gold, scorer, study.scorers, item=run.item_id, ended=ended)


def _plan_of(study: Study, run: Run) -> str | None:
    """The manifest from whose plan a problem's gold answer and scorer are: the newest that has it.

    None for a study without manifests.
    """
    key = (run.configuration.model, run.configuration.dataset)
    sweep = next((one for one in study.sweeps if key in one.plan.items), None)
    return None if sweep is None else f"{manifest.FOLDER}/{sweep.id}.json"


def _place(record: Record) -> RecordPlace:
    """Where in the store a run's record lies."""
    path = f"{record.path.parent.name}/{record.path.name}"
    return {"file": path, "offset": record.offset, "length": record.length}


def _ratio(sample: Sample) -> float | None:
    """Compressed over original bytes of the whole output."""
    ends = [*sample.curve][-1:]
    return ends[0][2] / ends[0][1] if ends and ends[0][1] else None


def _cap_from(study: Study, run: Run, cap: int) -> str:
    """Where a run's cap is from."""
    config, room = study.config, run.problem.room
    if room is not None and cap == room and not config.beyond_positions:
        return "what the model's positions leave behind the prompt"
    if run.configuration.is_full:
        return f"--max-new-tokens {config.max_new_tokens}"
    tokens = study.full_tokens(run)
    if tokens is None:
        return f"--cap {config.cap}; what full attention takes here is not known"
    asked = f"--cap {config.cap}, --max-new-tokens {config.max_new_tokens}"
    return f"{asked}; full attention took {tokens:,} tokens"


def _outcome(one: Sample) -> DetectorOutcome:
    return {
        "detector": one.detector,
        "action": one.action,
        "status": one.status,
        "fired_at": one.stopped_at,
        "tokens": one.tokens,
        "paid_tokens": one.paid_tokens,
        "correct": one.correct,
    }


def _full(study: Study, run: Run) -> FullRun:
    full = study.plan.full(run)
    record = study.store.get(full.id)
    (sample,) = samples_of(full, record, study.caps(full), "none", [], study.store, study.scorers)
    return {
        "id": full.id,
        "status": sample.status,
        "tokens": sample.tokens,
        "correct": sample.correct,
    }


# ---------------------------------------------------------------- for readers


def _print(run: Mapping[str, Any], whole: bool, console: Console) -> None:
    budget = "" if run["budget"] is None else f" {run['budget']}"
    added = "".join(f" + {one['name']}" for one in run["penalties"])
    title = f"{run['item_id']} ({run['dataset']}), {run['backend']}{budget}{added}"
    console.rule(escape(title), style="dim", align="left")
    _line(f"run {run['id']}, sample {run['sample_index']}, model {run['model']}", console)
    if run["prompt"] is not None:
        dim(beginning_and_end(run["prompt"], whole, "--whole"), console)
    if run["text"] is not None:
        console.print()
        output = ending(run["text"], whole, "--whole")
        console.print(output, markup=False, highlight=False, soft_wrap=True)
        console.print()
    for line in _lines(run):
        _line(line, console)
    if run["detectors"]:
        console.print(_table(run))


def _line(text: str, console: Console) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _lines(run: Mapping[str, Any]) -> list[str]:
    lines = [f"status    {run['status']}" + (f": {run['message']}" if run["message"] else "")]
    if run["tokens"] is not None:
        lines.append(f"answer    {_answer(run)}")
        lines.append(f"because   {_because(run)}")
        if run["gold_from"] is not None:
            lines.append(f"gold      from the plan in {run['gold_from']}")
        end = f"ended by {run['finish']}"
        if run["at_positions"]:
            end += ", where the model's positions end or beyond"
        more = run["stored_tokens"] - run["tokens"]
        stored = f"; {more:,} more are stored" if more else ""
        lines.append(f"tokens    {run['tokens']:,}, {end}{stored}")
    lines.append(f"cap       {run['cap']:,} ({run['cap_from']})")
    if run["record"] is not None:
        place = run["record"]
        where = f"{place['file']}, {place['length']:,} bytes from {place['offset']:,}"
        lines.append(f"record    {where}, decoded in sweep {run['sweep']}")
    if run["full"] is not None and run["full"]["tokens"] is not None:
        right = _verdict(run["full"]["correct"])
        lines.append(f"full      {run['full']['tokens']:,} tokens, {right}")
    costs = ", ".join(
        f"{name} {_number(value)}" for name, value in run["costs"].items() if value is not None
    )
    if run["tokens"] is not None:
        lines.append(f"costs     {costs}")
    if run["compression_ratio"] is not None:
        lines.append(f"packed    {run['compression_ratio']:.3f} compressed over original bytes")
    return lines


def _answer(run: Mapping[str, Any]) -> str:
    """The answer, what it was found by, and what is accepted."""
    answer = "none found" if run["answer"] is None else run["answer"]
    rule = "" if run["rule"] is None else f" by {run['rule']}"
    gold = run["gold"]
    accepted = " or ".join(gold) if isinstance(gold, tuple) else gold
    known = "no answer is known" if accepted is None else f"gold {accepted}"
    return f"{answer}{rule}, {known}, scorer {run['scorer']}: {_verdict(run['correct'])}"


def _because(run: Mapping[str, Any]) -> str:
    """Why the answer counts as it does: the comparison, other answers, and what a cap cut off."""
    words = str(run["reason"])
    *before, _ = run["boxed"] or [None]
    if before and run["rule"] == "the last \\boxed{}":
        shown = list(dict.fromkeys(before))[-_OTHERS:]
        words += f"; before it {len(before):,} more in boxes: {', '.join(map(repr, shown))}"
    if run["status"] == "capped":
        words += f"; cut at {run['tokens']:,} tokens"
        if run["stored_tokens"] > run["tokens"]:
            right = _verdict(run["correct_of_all_stored"])
            words += f", all {run['stored_tokens']:,} that are stored are {right}"
    return words


def _verdict(right: bool | None) -> str:
    return {None: "not judged", True: "right", False: "wrong"}[right]


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{0 if value >= 100 else 2}f}"


def _table(run: Mapping[str, Any]) -> Table:
    """Where each detector of the store fired, and what is left."""
    table = Table(title="detectors", title_justify="left", box=None, pad_edge=False)
    for name in ("detector", "then", "fired at", "tokens", "answer"):
        table.add_column(name, justify="left" if name in ("detector", "then") else "right")
    for one in run["detectors"]:
        fired = "—" if one["fired_at"] is None else f"{one['fired_at']:,}"
        left = one["status"] if one["tokens"] is None else f"{one['tokens']:,}"
        table.add_row(escape(one["detector"]), one["action"], fired, left, _verdict(one["correct"]))
    return table
