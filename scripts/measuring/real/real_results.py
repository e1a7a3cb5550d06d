"""What the page of real models keeps of the sweeps and readings that it is made of."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import penalty_readings
from loop_readings import counted
from paired_readings import readings
from rich.console import Console

from experiments.store.study import Study

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from measure_actions import Part, measure  # noqa: E402

PACKED = HERE.parents[1] / "stores" / "packed_stores.py"
FIELDS = (
    "model", "backend", "backend_params", "budget", "role", "penalty", "samples", "n", "capped",
    "accuracy", "accuracy_low", "accuracy_high", "solved_lost", "solved_gained",
    "accuracy_change", "accuracy_change_low", "accuracy_change_high", "mean_tokens",
    "length_ratio", "length_ratio_low", "length_ratio_high", "length_ratio_p",
    "length_ratio_solved", "length_ratio_solved_low", "length_ratio_solved_high",
    "length_ratio_solved_p", "solved_by_both", "length_ratio_of_sums",
    "keys_read_per_solved_ratio", "keys_read_per_solved_ratio_low",
    "keys_read_per_solved_ratio_high", "repetition_rate",
)  # fmt: skip
Row = dict[str, Any]
#: Detectors read over the texts that loop. `outside`: repeated tokens that have to come where a
#: model does not open its thinking, 1,000 where nothing is said.
WATCHED = (
    "guardian", "guardian(f=100)", "cycle", "cycle(outside=200)", "cycle(outside=100)",
    "recurrence", "recurrence(outside=200)", "recurrence(outside=100)",
)  # fmt: skip
#: What the names of sweeps whose loops are looked at end with.
LOOPING = ("-greedy", "-drawn")


def unpacked(traces: Path, folder: Path) -> None:
    """Stores again from packed ones, with what was measured of them beside them.

    Args:
        traces: a folder of files of packed_stores.py.
        folder: it gets a store for each, and `measured`, as measure_real_models.py leaves them.

    Raises:
        subprocess.CalledProcessError, RuntimeError: one that cannot be read.
    """
    measured = folder / "measured"
    measured.mkdir()
    for file in sorted(traces.glob("*.zst")):
        store = str(folder / file.stem)
        subprocess.run([sys.executable, PACKED, "unpack", file, store], check=True)
        report = ("-m", "experiments.cli", "report", store)
        parts = [Part(file.stem, [*report, "--json", "--no-figures", "--no-page"])]
        if file.stem.endswith(LOOPING):
            again = [str(HERE / "recalibrated.py"), store, "--json"]
            parts.append(Part(f"recalibrated-{file.stem}", again, refusal=True))
        for part in parts:
            measure(part, measured / f"{part.name}.json", Console(stderr=True))


def taken(folder: Path, kept: dict[str, Any]) -> dict[str, Any]:
    """What is kept, with the parts of a folder in place of older ones."""
    found = dict(kept)
    for file in sorted((folder / "measured").glob("*.json")):
        document = json.loads(file.read_text())
        if file.stem == "cold-start":
            found[file.stem] = document
            continue
        if file.stem.startswith(("chopper-", "recalibrated-")):
            found[file.stem] = _reading(document)
            continue
        config = document["manifest"]["config"]
        told = {name: config[name] for name in ("dtype", "weights", "temperature", "cap", "limit")}
        if file.stem.startswith("penalties-"):
            of_penalties = penalty_readings.readings(Study.open(folder / file.stem))
            found[file.stem] = {"penalties": list(of_penalties), **told}
            continue
        found[file.stem] = {
            "rows": [
                {name: row.get(name) for name in FIELDS} | {"model": Path(row["model"]).stem}
                for row in document["rows"]
                if row["detector"] == "none"
            ],
            **told,
        }
        if file.stem == "table":
            found[file.stem]["paired"] = list(readings(Study.open(folder / file.stem)))
        if file.stem.endswith(LOOPING):
            study = Study.open(folder / file.stem)
            of_loops = counted(replace(study, config=replace(study.config, detectors=WATCHED)))
            found[file.stem]["loops"] = [
                {name: value for name, value in row.items() if name != "detectors"}
                | {"model": Path(row["model"]).stem}
                for row in of_loops
            ]
            found[file.stem]["watched"] = [
                {"backend": row["backend"], "budget": row["budget"], **one}
                for row in of_loops
                for one in row["detectors"]
            ]
    return found


def _reading(document: Row) -> Row:
    """Of a part that read stores again what the page shows, or why it has no answer."""
    if "refused" in document:
        # Where files lie on one machine is of no interest.
        said = re.sub(r"^(?:lil: error|\w+): ", "", document["refused"])
        return {"refused": re.sub(r"/[^' ]*/", "", said)}
    if "store" in document:  # detectors set anew
        return document
    return {
        half: [{k: v for k, v in row.items() if k != "dataset"} for row in rows]
        for half, rows in document["rows"].items()
    }
