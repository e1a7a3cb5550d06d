"""A sweep with everything that makes a table wide: long names, actions, penalties, parameters."""

from __future__ import annotations

from dataclasses import replace

from synthetic_samples import demo, guarded

from experiments.store.samples.sample import Sample

MODEL = "some-organisation/DeepThought-R1-Distill-Qwen2.5-32B-Instruct"
DATASETS = {
    "easy": "/data/sets/of/mine/competition-mathematics-2019-2024.jsonl",
    "hard": "/data/sets/of/others/competition-mathematics-2019-2024.jsonl",
}
QUEST = {"quest": (("dense_layers", 0), ("page", 8)), "infllm": (("dense_layers", 2), ("page", 16))}


def crowded(problems: int = 4, budgets: tuple[int, ...] = (128, 16384)) -> list[Sample]:
    """Two detectors with two actions each, two pages of Quest, a penalty, censored pairs."""
    renamed = [
        replace(
            sample,
            model=MODEL,
            dataset=DATASETS[sample.dataset],
            # Two lines of one backend, which differ in their parameters.
            backend="quest" if sample.backend in QUEST else sample.backend,
            backend_params=QUEST.get(sample.backend, ()),
            status="capped" if (sample.backend, sample.item_id) == ("full", "0") else sample.status,
        )
        for sample in demo(
            problems=problems,
            budgets=budgets,
            backends=("h2o", "sink", "quest", "infllm"),
            datasets=tuple(DATASETS),
        )
        if sample.detector == "none"
    ]
    watched = []
    for sample in renamed:
        half = (sample.tokens or 0) // 2 if sample.status == "capped" else None
        stop = guarded(sample, half)
        watched += [stop, replace(stop, action="regenerate", dropped_tokens=30)]
        if sample.backend == "quest":  # not every backend can do everything
            watched.append(replace(stop, detector="mine:Streaks", action="densify", correct=True))
        watched.append(replace(stop, detector="mine:Streaks", correct=False))
    both = renamed + watched
    return both + [
        replace(sample, penalty="presence_window(window=512)", tokens=(sample.tokens or 0) // 2 + 1)
        for sample in both
    ]
