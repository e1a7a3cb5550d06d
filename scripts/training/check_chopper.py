"""A chopper beside the labels, on stored traces that it was not trained on.

    lil sweep --detector guardian,chopper --out lil-out/demo
    python scripts/training/check_chopper.py lil-out/demo --out chopper.json

The shipped one, by the numbers that the sweep recorded; problems of the split `study`, others than
it was trained on. Nothing is decoded.

    lil chopper train --from lil-out/greedy --weights chopper.safetensors
    python scripts/training/check_chopper.py lil-out/drawn --classifier chopper.safetensors \\
        --trained lil-out/greedy --out drawn.json

Another one, on a sweep that did not record its numbers: the model reads the traces again. Of the
problems it was trained on those are left that the training held out.

Labels are made as for training, from the text.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attention.errors import InvalidValue
from experiments import chopper_training as chopper
from experiments.grid import models
from experiments.grid.plan import SHIPPED_CHOPPERS
from experiments.store.study import Study
from lil import Chopper
from lil.chopper import Classifier, Labeller, SentenceModel, TextMatch

#: Chunks of at most so many tokens are left out, as in training.
SHORT = 10


def recorded(study: Study) -> list[chopper.Measured]:
    """The rows of the shipped chopper, of numbers that a sweep recorded."""
    signal = Chopper(next(iter(SHIPPED_CHOPPERS.values()))).signal
    known = []
    for one in chopper.labelled(study, Labeller()):
        numbers = dict(one.trace.signals[signal])
        # A chunk that ends with the trace has no number: its last token was never read.
        read = tuple(chunk for chunk in one.chunks if chunk.end in numbers)
        values = [numbers[chunk.end] for chunk in read]
        known.append((dataclasses.replace(one, chunks=read), values))
    return chopper.tabled(known, short=SHORT)


def read_again(study: Study, classifier: Classifier, trained: Study) -> list[chopper.Measured]:
    """The rows of another chopper, on problems that its training held out or never had.

    Args:
        study: whose traces are read.
        classifier: of this model.
        trained: the sweep it was trained on.

    Raises:
        InvalidValue: another model's classifier or sweep, or no problem is left.
    """
    digest = classifier.training.get("model_digest")
    source = models.find(
        study.config.models[0], study.config.revision, weights=study.config.weights
    )
    for one in (study, trained):
        if any(cell.model_digest != digest for cell in one.plan.cells) or source.digest != digest:
            raise InvalidValue("classifier", classifier.model, f"that of {one.folder}'s model")
    seen = [
        (run.cell.dataset, run.item_id)
        for run in trained.runs()
        if run.cell.role != "null" and trained.served(run) is not None
    ]
    taught = set(seen) - chopper.every_fifth(seen)
    traces = [
        one
        for one in chopper.labelled(study, labeller(classifier))
        if (one.run.cell.dataset, one.run.item_id) not in taught
    ]
    if not traces:
        raise InvalidValue("store", str(study.folder), "other problems than those of the training")
    models.use_threads(study.config.threads)
    device = models.resolve_device(study.config.device)
    loaded = models.load(source, study.config.dtype, device, study.config.device_map)
    read = chopper.with_states(loaded, study, traces, classifier.block)
    return chopper.measured(classifier, read, int(classifier.training.get("short", SHORT)))


def labeller(classifier: Classifier) -> Labeller:
    """What made the labels that it was trained on."""
    told: dict[str, Any] = dict(classifier.labeller)
    embedder = dict(told.pop("embedder"))
    kind = {"text": TextMatch, "sentence": SentenceModel}[embedder.pop("name")]
    return Labeller(embedder=kind(**embedder), **told)


def main(argv: Sequence[str] | None = None) -> int:
    """The rows, printed and written; 2 where that cannot be."""
    models.quiet_transformers()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--classifier", type=Path, help="what `lil chopper train` wrote")
    parser.add_argument("--trained", type=Path, help="the sweep it was trained on")
    args = parser.parse_args(argv)
    if (args.classifier is None) != (args.trained is None):
        parser.error("--classifier and --trained belong together")
    try:
        study = Study.open(args.store)
        if args.classifier is None:
            rows = recorded(study)
        else:
            classifier = Classifier.load(args.classifier)
            rows = read_again(study, classifier, Study.open(args.trained))
    except InvalidValue as error:
        print(f"check_chopper: {error}", file=sys.stderr)
        return 2
    for row in rows:
        print(row)
    args.out.write_text(json.dumps({"rows": {"held_out": rows}}, indent=0) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
