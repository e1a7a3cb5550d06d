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
from typing import TYPE_CHECKING, Any

from attention.errors import InvalidValue
from experiments.evals.inspect_samples import Asked, failure, logged_sample, problems_of
from experiments.grid.identity import digest
from experiments.store import manifest
from experiments.store.samples.sample import Sample
from experiments.store.study import Study

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog

#: What of a row stands among a log's metrics, where it is known; all of the row is in its metadata.
METRICS = (
    *("accuracy", "accuracy_low", "accuracy_high", "accuracy_change", "mean_tokens"),
    *("length_ratio", "length_ratio_solved", "token_savings", "compression_ratio"),
    *("repetition_rate", "keys_read_mean", "keys_read_per_solved", "end_to_end_sec"),
)
Key = tuple[object, ...]


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
    problems: Mapping[tuple[str, str, str], Asked],
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
    return next((cell.model_digest for cell in study.plan.cells if cell.model == model), None)


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
