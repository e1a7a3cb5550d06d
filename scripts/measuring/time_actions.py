"""Measure what detectors and their actions cost in seconds: whole batches, decoded live, in turn.

    python scripts/measuring/time_actions.py --out times.json

A sweep decodes only the runs in which a detector fires, in batches of their own, so its seconds do
not compare. Here each way decodes the same problems at once, on one thread, and its processor time
is taken, which other work on the machine disturbs less than the time on the clock.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import lil
from experiments.grid import data, models, scoring
from experiments.grid.detectors import build_detectors
from experiments.grid.plan import build_backends
from experiments.grid.presets import load
from experiments.store.manifest import conditions

PLACES = (("h2o", 256, "medium"), ("quest", 128, "hard"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problems", type=int, default=16)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    config = load("actions", {"limit": args.problems})
    threads = models.use_threads(1)
    loaded = models.load(models.find("reasoner", None), config.dtype, "cpu")
    lil.decode(loaded.model, loaded.tokenizer, [[5, 6]], max_new_tokens=8)  # loads what is lazy
    rows = []
    for name, budget, dataset in PLACES:
        items = data.load(dataset, config.split, config.limit)
        prompts = [item.prompt_ids(loaded.tokenizer) for item in items]
        backends = build_backends(config)
        full = lil.decode(loaded.model, loaded.tokenizer, prompts, max_new_tokens=2048)
        doubled = [lil.Request(p, 2 * t.tokens) for p, t in zip(prompts, full, strict=True)]
        backend = next(b for b in backends if (b.name, b.budget) == (name, budget))
        for detector in [None, *build_detectors(config)]:
            if detector is not None and detector.action.dense and not backend.keeps_all:
                continue
            started = time.process_time()
            traces = lil.decode(
                loaded.model,
                loaded.tokenizer,
                doubled,
                backend=backend,
                detectors=[] if detector is None else [detector],
            )
            seconds = time.process_time() - started
            solved = [
                scoring.correct(t.text, i.gold, i.scorer)
                for t, i in zip(traces, items, strict=True)
            ]
            rows.append(
                {
                    "backend": name,
                    "budget": budget,
                    "dataset": dataset,
                    "detector": "none" if detector is None else detector.name,
                    "action": "none" if detector is None else detector.action.name,
                    "problems": len(items),
                    "solved": sum(map(bool, solved)),
                    "fired": sum(t.action is not None or t.evidence is not None for t in traces),
                    "tokens": sum(t.tokens for t in traces),
                    "decoded": sum(t.decoded_tokens for t in traces),
                    "keys_read": sum(t.checks[-1].keys_read for t in traces),
                    "seconds": seconds,
                }
            )
            print({key: rows[-1][key] for key in ("detector", "action", "decoded", "seconds")})
    about = conditions("cpu", config.dtype, threads)
    document = {"rows": rows, **about}
    args.out.write_text(json.dumps(document, indent=0) + "\n")


if __name__ == "__main__":
    main()
