"""A sample as inspect_ai logs one: prompt, output, score, and what it cost."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.grid.data.sets import labels
from experiments.grid.scoring import Gold, last_boxed
from experiments.store.samples.sample import Sample, is_usable
from experiments.store.study import Study

if TYPE_CHECKING:
    from inspect_ai.log import EvalSample

#: What of a sample stands elsewhere in its log.
_TOLD = ("model", "dataset", "item_id", "sample_index", "text", "message")
_STOP_REASONS = {"eos": "stop", "length": "max_tokens"}


class Asked(NamedTuple):
    """A problem as the store knows it; what no trace tells is None."""

    prompt: str | None
    prompt_tokens: int | None
    gold: Gold
    scorer: str


def problems_of(study: Study) -> dict[tuple[str, str, str], Asked]:
    """Every problem of the plan by model, data set's label and id, from any run with a trace."""
    found: dict[tuple[str, str, str], Asked] = {}
    called = labels([cell.dataset for cell in study.plan.cells])
    for run in study.runs():
        name = (run.cell.model, called[run.cell.dataset], run.item_id)
        if name in found and found[name].prompt is not None:
            continue
        gold, scorer = run.problem.gold, run.problem.scorer
        found[name] = Asked(None, None, gold, scorer)
        record = study.store.get(run.id)
        if record is not None and not record.failed:
            trace = record.trace()
            text = trace.prompt_bytes.decode(errors="replace")
            found[name] = Asked(text, len(trace.prompt_ids), gold, scorer)
    return found


def logged_sample(one: Sample, asked: Asked) -> EvalSample:
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
        answer_found = last_boxed(one.text or "")
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
