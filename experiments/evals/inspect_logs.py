"""A store as inspect_ai's logs, one a configuration, which `inspect view` opens."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import re
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attention.errors import InvalidValue
from experiments.grid.answers import last_boxed
from experiments.grid.data.sets import labels
from experiments.grid.identity import digest
from experiments.grid.scoring import Gold
from experiments.store import manifest
from experiments.store.samples.sample import Sample, is_usable
from experiments.store.study import Study

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample

#: What of a row stands among a log's metrics, where it is known; all of the row is in its metadata.
METRICS = (
    *("accuracy", "accuracy_low", "accuracy_high", "accuracy_change", "mean_tokens"),
    *("length_ratio", "length_ratio_solved", "token_savings", "compression_ratio"),
    *("repetition_rate", "keys_read_mean", "keys_read_per_solved", "end_to_end_sec"),
)
Key = tuple[object, ...]

#: What of a sample stands elsewhere in its log.
_TOLD = ("model", "dataset", "item_id", "sample_index", "text", "message")
_STOP_REASONS = {"eos": "stop", "length": "max_tokens"}


class StoredProblem(NamedTuple):
    """A problem as the store knows it; what no trace tells is None."""

    prompt: str | None
    prompt_tokens: int | None
    gold: Gold
    scorer: str


def require_inspect(folder: Path) -> None:
    """Refuse to write logs where the package is not there.

    Raises:
        InvalidValue: it is not.
    """
    if importlib.util.find_spec("inspect_ai") is None:
        allowed = "the package `inspect-ai` to write its logs (`scripts/setup inspect`)"
        raise InvalidValue("inspect", str(folder), allowed)


def write_logs(
    study: Study, samples: Sequence[Sample], rows: Sequence[Mapping[str, Any]], folder: Path
) -> list[Path]:
    """Write one log a row: all of them, or none where one cannot be written.

    Args:
        study: where the samples come from: prompts, answers, and how they were decoded.
        samples: of all rows.
        rows: as `ReportRow.to_dict` gives them.
        folder: where logs go; one of the same store and configuration is replaced.

    Returns:
        The files, in the order of the rows.

    Raises:
        InvalidValue: the package is missing, or the folder cannot be written.
    """
    require_inspect(folder)
    from inspect_ai.log import write_eval_log

    apart: dict[Key, list[Sample]] = defaultdict(list)
    for sample in samples:
        apart[_key(dataclasses.asdict(sample))].append(sample)
    problems = problems_of(study)
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".lil-", dir=folder) as temporary:
            files = []
            for row in rows:
                log = _log(study, row, apart[_key(row)], problems)
                created = re.sub(r"\W", "-", log.eval.created)
                files.append(f"{created}_{log.eval.task}_{log.eval.task_id}.eval")
                write_eval_log(log, str(Path(temporary, files[-1])), format="eval")
            return [Path(temporary, name).replace(folder / name) for name in files]
    except BaseException as error:
        if made and folder.is_dir():
            with contextlib.suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError):
            allowed = f"a folder to write in ({error.strerror})"
            raise InvalidValue("inspect", str(folder), allowed) from error
        raise


def _key(one: Mapping[str, Any]) -> Key:
    names = ("model", "dataset", "backend", "budget", "penalty", "detector", "action")
    return (*(one[name] for name in names), repr(sorted(dict(one["backend_params"]).items())))


def _log(
    study: Study,
    row: Mapping[str, Any],
    samples: Sequence[Sample],
    problems: Mapping[tuple[str, str, str], StoredProblem],
) -> EvalLog:
    from inspect_ai.log import EvalLog, EvalPlan, EvalPlanStep, EvalStats
    from inspect_ai.model import ModelUsage

    about = study.manifest
    there = [sample for sample in samples if sample.status != "missing"]
    logged = [logged_sample(one, problems[one.model, one.dataset, one.item_id]) for one in there]
    usages = [one.output.usage or ModelUsage() for one in logged]
    config = {
        name: row[name]
        for name in ("backend", "budget", "backend_params", "penalty", "detector", "action")
    }
    complete, told = _completed(row) == row["samples"], f"of {row['samples']}, not comparable"
    return EvalLog(
        status="success" if complete else "error",
        error=None if complete else failure(f"{_completed(row)} {told}"),
        eval=_spec(study, row, config, sorted({sample.item_id for sample in samples})),
        plan=EvalPlan(name="lil", steps=[EvalPlanStep(solver="lil.decode", params=config)]),
        results=_results(row, {problems[s.model, s.dataset, s.item_id].scorer for s in there}),
        stats=EvalStats(
            started_at=about["started"],
            completed_at=about["ended"] or "",
            model_usage={row["model"]: sum(usages, start=ModelUsage())},
        ),
        samples=logged,
    )


def _spec(
    study: Study, row: Mapping[str, Any], config: Mapping[str, Any], items: Sequence[str]
) -> Any:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalRevision, EvalSpec
    from inspect_ai.model import GenerateConfig

    about, asked = study.manifest, study.config
    dataset = Path(row["dataset"]).stem
    told = [dataset, row["backend"], row["budget"], row["penalty"], row["detector"], row["action"]]
    words = [str(word) for word in told if word not in (None, "none")]
    sweep = digest([about["started"], about["arguments"], about["models"]])
    own = digest([sweep, row["model"], row["dataset"], *map(repr, _key(row))])[:22]
    commit = about["commit"]
    return EvalSpec(
        eval_id=own,
        run_id=sweep[:22],
        task_id=own,
        created=about["started"],
        task=re.sub(r"[^A-Za-z0-9.=-]+", "-", "-".join(words)).strip("-"),
        task_args=dict(config),
        tags=[row[name] for name in ("backend", "penalty", "detector") if row[name] != "none"],
        dataset=EvalDataset(
            name=dataset, location=row["dataset"], samples=len(items), sample_ids=list(items)
        ),
        model=row["model"],
        model_args={"digest": _digest_of(study, row["model"]), "dtype": about["dtype"]},
        model_generate_config=GenerateConfig(
            max_tokens=asked.max_new_tokens,
            temperature=asked.temperature,
            top_k=asked.top_k,
            top_p=asked.top_p,
            seed=asked.seed,
        ),
        config=EvalConfig(limit=asked.limit, epochs=asked.samples_per_problem),
        revision=EvalRevision(type="git", origin="", commit=commit, dirty=about["dirty"])
        if commit
        else None,
        packages={name: version for name, version in about["packages"].items() if version},
        metadata={"row": dict(row), "manifest": manifest.public(about)},
    )


def _digest_of(study: Study, model: str) -> str | None:
    return next(
        (cell.model_digest for cell in study.plan.configurations if cell.model == model), None
    )


def _completed(row: Mapping[str, Any]) -> int:
    return int(row["finished"] + row["capped"] + row["stopped"])


def _results(row: Mapping[str, Any], scorers: set[str]) -> Any:
    from inspect_ai.log import EvalMetric, EvalResults, EvalScore

    done = _completed(row)
    known = {name: row[name] for name in METRICS if row[name] is not None}
    scores = [
        EvalScore(
            name=scorer,
            scorer=scorer,
            scored_samples=done,
            unscored_samples=row["samples"] - done,
            metrics={name: EvalMetric(name=name, value=value) for name, value in known.items()},
        )
        for scorer in sorted(scorers)[:1]  # a data set has one
    ]
    return EvalResults(total_samples=row["samples"], completed_samples=done, scores=scores)


# ---------------------------------------------------------------- samples


def problems_of(study: Study) -> dict[tuple[str, str, str], StoredProblem]:
    """Every problem of the plan by model, data set's label and id, from any run with a trace."""
    found: dict[tuple[str, str, str], StoredProblem] = {}
    called = labels([cell.dataset for cell in study.plan.configurations])
    for run in study.runs():
        name = (run.configuration.model, called[run.configuration.dataset], run.item_id)
        if name in found and found[name].prompt is not None:
            continue
        gold, scorer = run.problem.gold, run.problem.scorer
        found[name] = StoredProblem(None, None, gold, scorer)
        record = study.store.get(run.id)
        if record is not None and not record.failed:
            trace = record.trace()
            text = trace.prompt_bytes.decode(errors="replace")
            found[name] = StoredProblem(text, len(trace.prompt_ids), gold, scorer)
    return found


def logged_sample(one: Sample, asked: StoredProblem) -> EvalSample:
    """The sample; one that failed has its error, and neither output nor score."""
    from inspect_ai.log import EvalSample, EvalSampleLimit
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessageAssistant,
        ChatMessageUser,
        ModelOutput,
        ModelUsage,
    )
    from inspect_ai.scorer import CORRECT, INCORRECT, Score

    prompt, name = asked.prompt or "", f"{one.item_id}-{one.sample_index}"
    left = {k: v for k, v in dataclasses.asdict(one).items() if k not in _TOLD}
    left |= {"backend_params": dict(one.backend_params), "curve": [list(at) for at in one.curve]}
    question = ChatMessageUser(content=prompt, id=f"{name}-prompt")
    begun = {
        "id": one.item_id,
        "epoch": one.sample_index + 1,
        "input": prompt,
        "target": [*asked.gold] if isinstance(asked.gold, tuple) else asked.gold or "",
        "metadata": left,
    }
    if not is_usable(one):
        return EvalSample(
            **begun, messages=[question], error=failure(f"{one.status}: {one.message}")
        )
    answer = ChatMessageAssistant(content=one.text or "", id=f"{name}-output", model=one.model)
    sent, came = asked.prompt_tokens or 0, one.tokens or 0
    usage = ModelUsage(input_tokens=sent, output_tokens=came, total_tokens=sent + came)
    seconds = (
        None
        if one.prefill_sec is None or one.decode_sec is None
        else one.prefill_sec + one.decode_sec
    )
    reason = _STOP_REASONS.get(str(one.finish), "unknown")  # a detector's name: see the metadata
    value, scores = (CORRECT if one.correct else INCORRECT), {}
    if one.correct is not None:
        answer_found = one.answer if one.answer is not None else last_boxed(one.text or "")
        scores = {asked.scorer: Score(value=value, answer=answer_found)}
    return EvalSample(
        **begun,
        messages=[question, answer],
        output=ModelOutput(
            model=one.model,
            choices=[ChatCompletionChoice(message=answer, stop_reason=reason)],
            usage=usage,
            time=seconds,
        ),
        scores=scores,
        model_usage={one.model: usage},
        total_time=seconds,
        working_time=seconds,
        limit=EvalSampleLimit(type="token", limit=came) if one.status == "capped" else None,
    )


def failure(message: str) -> Any:
    """An error of inspect_ai with nothing but a message."""
    from inspect_ai.log import EvalError

    return EvalError(message=message, traceback="", traceback_ansi="")
