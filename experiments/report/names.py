"""Names for readers: short ones of models and data sets, and those of detectors.

Rows themselves keep the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from experiments.report.row import ReportRow
from experiments.store.samples.sample import Sample

#: The most characters of a name that a table's column and a panel's title have room for.
WIDTH = 20

_FILES = (".jsonl", ".json")


def short_names(names: Iterable[str], width: int = WIDTH) -> dict[str, str]:
    """Each name by its short one: the stem of a file, the end of a hub id; no two are equal.

    Where ends are equal, as many folders as tell them apart stand before; what is then longer than
    `width` loses its middle.
    """
    apart = {name: _parts(name) for name in sorted(set(names))}
    depth = dict.fromkeys(apart, 1)
    while True:
        told = {name: "/".join(parts[-depth[name] :]) for name, parts in apart.items()}
        again = [name for name in _repeated(told) if depth[name] < len(apart[name])]
        if not again:
            break
        for name in again:
            depth[name] += 1
    for name in _repeated(told):
        told[name] = name  # a.json and a.jsonl
    return _cut(told, width)


def _parts(name: str) -> list[str]:
    for ending in _FILES:
        stem = name.removesuffix(ending)
        if stem != name and stem and not stem.endswith("/"):
            name = stem
            break
    return [part for part in name.split("/") if part] or [name]


def _repeated(told: dict[str, str]) -> list[str]:
    times = Counter(told.values())
    return [name for name, short in told.items() if times[short] > 1]


def _cut(told: dict[str, str], width: int) -> dict[str, str]:
    """Long names without their middle; a number where that would make two alike."""
    found: dict[str, str] = {}
    taken = {short for short in told.values() if len(short) <= width}
    for name, short in told.items():
        found[name] = short
        end = ""
        while len(short) > width and found[name] in {short, *taken}:
            room = width - 1 - len(end)
            found[name] = short[: room - room // 2] + "…" + short[len(short) - room // 2 :] + end
            end = f"~{int(end[1:] or 1) + 1}"
        taken.add(found[name])
    return found


def naming(rows: Sequence[ReportRow]) -> Callable[[Sample], Sample]:
    """What gives samples the names that `shortly_named` gives their rows."""
    models = short_names(row.model for row in rows)
    datasets = short_names(row.dataset for row in rows)
    return lambda one: replace(
        one,
        model=models.get(one.model, one.model),
        dataset=datasets.get(one.dataset, one.dataset),
    )


def shortly_named(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """The rows under short names of their models and data sets, for readers."""
    models = short_names(row.model for row in rows)
    datasets = short_names(row.dataset for row in rows)
    return [replace(row, model=models[row.model], dataset=datasets[row.dataset]) for row in rows]


def detector_name(name: str, action: str, among: Sequence[tuple[str, str]]) -> str:
    """What tables and sentences call a detector: its action only where it comes with several."""
    return name if [other for other, _ in among].count(name) == 1 else f"{name} ({action})"


def capital(text: str) -> str:
    """A sentence's beginning; what is a capital already stays one."""
    return text[:1].upper() + text[1:]
