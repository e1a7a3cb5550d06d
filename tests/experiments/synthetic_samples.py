"""Samples made up for the tests of statistics and reports; nothing here is decoded."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from experiments.store.samples.sample import Sample


def sample(item: int | str = 0, **fields: Any) -> Sample:
    """A finished, correct sample of full attention, 100 tokens long; any field can be set."""
    values: dict[str, Any] = {
        "model": "m",
        "dataset": "easy",
        "item_id": str(item),
        "sample_index": 0,
        "backend": "full",
        "backend_params": (),
        "budget": None,
        "penalty": "none",
        "detector": "none",
        "action": "none",
        "status": "ok",
        "finish": "eos",
        "message": None,
        "text": "",
        "tokens": 100,
        "correct": True,
        "stopped_at": None,
        "prefill_sec": 1.0,
        "decode_sec": 3.0,
        "keys_read": 1000.0,
        "keys_kept_max": 120,
        "keys_read_mean": 60.0,
        "keys_read_max": 120,
        "dense_layer_keys_read_mean": None,
        "cache_bytes_peak": 4096,
        "cache_byte_sec": 8192.0,
        "curve": ((50, 200, 100), (100, 400, 160)),
        "repeated": False,
        "sweep": "first",
        "batch_size": 8,
    }
    merged = values | fields
    return Sample(**merged | {"curve": tuple(merged["curve"])})


def sparse(item: int | str = 0, **fields: Any) -> Sample:
    """As `sample`, under h2o with a budget of 32."""
    return sample(item, **({"backend": "h2o", "budget": 32} | fields))


def failed(item: int | str = 0, status: str = "error", **fields: Any) -> Sample:
    """A sample that gave nothing but a message."""
    nothing = (
        "finish text tokens correct prefill_sec decode_sec keys_read keys_kept_max keys_read_mean "
        "keys_read_max cache_bytes_peak cache_byte_sec repeated"
    )
    missing = dict.fromkeys(nothing.split())
    return sparse(
        item, **({"status": status, "message": "it broke", "curve": ()} | missing | fields)
    )


def guarded(plain: Sample, at: int | None) -> Sample:
    """The same trace under a detector that fires after `at` tokens, or never."""
    watched = replace(plain, detector="guardian", action="stop")
    if at is None or plain.tokens is None or at >= plain.tokens:
        return watched
    share = at / plain.tokens
    return replace(
        watched,
        status="stopped",
        finish="guardian",
        tokens=at,
        stopped_at=at,
        decode_sec=(plain.decode_sec or 0) * share,
        keys_read=(plain.keys_read or 0) * share,
        curve=tuple(point for point in plain.curve if (point[0] or 0) <= at),
    )


def demo(
    seed: int = 0,
    problems: int = 32,
    budgets: tuple[int, ...] = (16, 32, 64, 128),
    backends: tuple[str, ...] = ("h2o", "sink", "quest", "infllm"),
    datasets: tuple[str, ...] = ("easy", "medium", "hard"),
) -> list[Sample]:
    """A whole sweep that looks like one: small budgets solve less and run on to the cap."""
    draw = random.Random(seed)
    samples = []
    for level, dataset in enumerate(datasets):
        for item in range(problems):
            length = int(draw.gauss(150 + 130 * level, 25 + 15 * level))
            is_solved = draw.random() < 0.97 - 0.06 * level
            full = _run(dataset, item, "full", None, length, is_solved, False, draw)
            samples += [full, guarded(full, None)]
            for backend in backends:
                keeps_all = backend in ("quest", "infllm")
                for budget in budgets:
                    need = 22 + 14 * level - (10 if keeps_all else 0) + draw.gauss(0, 9)
                    is_lost = budget < need
                    stretch = 2.0 if is_lost else 1 + max(0.0, draw.gauss(0, 9 / budget))
                    tokens = min(2 * length, int(length * stretch))
                    capped = tokens == 2 * length
                    run = _run(
                        dataset,
                        item,
                        backend,
                        budget,
                        tokens,
                        is_solved and not capped,
                        capped,
                        draw,
                    )
                    samples += [run, guarded(run, int(length * 1.3) if capped else None)]
    return samples


def _run(
    dataset: str,
    item: int,
    backend: str,
    budget: int | None,
    tokens: int,
    is_solved: bool,
    loops: bool,
    draw: random.Random,
) -> Sample:
    read = sum(min(30 + step, budget or step + 30) for step in range(tokens)) * 8
    noise = draw.uniform(0.95, 1.05)
    points = sorted({*range(50, tokens + 1, 50), tokens})
    fresh = 0.5 * tokens if loops else tokens
    curve = tuple(
        (at, 3 * at, int(20 + noise * 1.1 * min(at, fresh) ** 0.92 + 0.03 * at)) for at in points
    )
    return sample(
        item,
        dataset=dataset,
        backend=backend,
        budget=budget,
        model="reasoner",
        status="capped" if loops else "ok",
        finish="length" if loops else "eos",
        tokens=tokens,
        correct=is_solved,
        keys_read=float(read),
        decode_sec=tokens * 0.002,
        prefill_sec=0.01,
        curve=tuple(curve),
        repeated=loops,
    )
