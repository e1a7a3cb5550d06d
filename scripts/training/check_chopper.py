"""The shipped chopper beside the labels, on every trace of a sweep that recorded its numbers.

    lil sweep --detector guardian,chopper --out lil-out/demo
    python scripts/training/check_chopper.py lil-out/demo --out chopper.json

Problems of the split `study`; the chopper was trained on others. Labels are made as for training,
from the text. Nothing is decoded.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from experiments import chopper_training as chopper
from experiments.grid.plan import SHIPPED_CHOPPERS
from experiments.store.study import Study
from lil import Chopper
from lil.chopper import Labeller


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    signal = Chopper(next(iter(SHIPPED_CHOPPERS.values()))).signal
    opened = Study.open(args.store)
    known = []
    for one in chopper.labelled(opened, Labeller()):
        numbers = dict(one.trace.signals[signal])
        # A chunk that ends with the trace has no number: its last token was never read.
        read = tuple(chunk for chunk in one.chunks if chunk.end in numbers)
        values = [numbers[chunk.end] for chunk in read]
        known.append((dataclasses.replace(one, chunks=read), values))
    rows = chopper.tabled(known, short=10)
    for row in rows:
        print(row)
    args.out.write_text(json.dumps({"rows": {"held_out": rows}}, indent=0) + "\n")


if __name__ == "__main__":
    main()
