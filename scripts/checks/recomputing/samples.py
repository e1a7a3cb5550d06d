"""What each planned problem gave: a stored trace within its cap, scored, cut where a stop fires."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from recomputing import answers, frames
from recomputing.detectors import Fired, fired, first_run

FAILED = ("error", "out_of_memory")


class Answer(NamedTuple):
    """The accepted answer of a problem, and by which scorer."""

    scorer: str
    gold: str | Sequence[str] | None

    def given(self, text: str, ended: bool) -> bool:
        """Whether a text gives it; `ended`: by itself."""
        return answers.solved(self.scorer, text, self.gold, ended)


@dataclass(frozen=True)
class Sample:
    """One problem under one configuration and detector; costs are of all that was decoded."""

    problem: str
    index: int
    status: str  # finished, capped, stopped, error, out_of_memory, missing
    fired: bool = False
    tokens: int = 0
    ids: tuple[int, ...] = ()
    paid: int = 0
    solved: bool = False
    reused: int = 0
    repeated: bool = False
    loop: int = 0  # tokens wasted, and left so by the detector
    tail: int = 0
    curve: tuple[tuple[int, int, int], ...] = ()
    keys: float = 0.0
    read_mean: float | None = None
    dense_mean: float | None = None
    kept_max: int | None = None
    read_max: int | None = None
    bytes_peak: int = 0
    prefill: float | None = None
    decode: float | None = None
    byte_sec: float | None = None
    setting: tuple[str, int] | None = None  # sweep and rows of its batch
    at_end: bool = False  # of the model's positions, or beyond

    @property
    def usable(self) -> bool:
        """Whether it was decoded at all."""
        return self.status not in (*FAILED, "missing")

    @property
    def at(self) -> tuple[str, int]:
        """What it shares with the same problem under another configuration."""
        return self.problem, self.index


@dataclass(frozen=True)
class Line:
    """One configuration: a cell of the plan under one detector."""

    cell: Mapping[str, Any]
    detector: Mapping[str, Any] | None
    samples: dict[tuple[str, int], Sample]

    @property
    def role(self) -> str:
        """What it is compared for."""
        return str(self.cell.get("role", "method"))

    @property
    def backend(self) -> dict[str, Any]:
        """As a row tells it: full attention with another seed has a name of its own."""
        found: dict[str, Any] = dict(self.cell["backend"])
        if found["name"] == "full" and self.role == "null":
            found["name"] = "full again"
        return found


def merged(lines: Sequence[Line]) -> Line:
    """One configuration on several data sets, as if they were one."""
    samples = {
        (f"{line.cell['dataset']}/{problem}", index): replace(
            one, problem=f"{line.cell['dataset']}/{problem}"
        )
        for line in lines
        for (problem, index), one in line.samples.items()
    }
    return Line({**lines[0].cell, "dataset": "all"}, lines[0].detector, samples)


def _called(datasets: set[str]) -> dict[str, str]:
    """What rows call data sets: a file by its stem, with folders where several have one."""
    files = {one for one in datasets if PurePath(one).suffix in (".jsonl", ".json", ".csv")}
    found = {one: one for one in datasets - files}
    for file in files:
        parts = PurePath(file).with_suffix("").parts
        ends = ("/".join(parts[-n:]) for n in range(1, len(parts) + 1))
        others = {PurePath(one).with_suffix("").as_posix() for one in datasets - {file}}
        alone = (end for end in ends if not any(f"/{one}".endswith(f"/{end}") for one in others))
        found[file] = next(alone, file)
    return found


@dataclass
class Sweep:
    """A store and what its newest sweep asked of it.

    Attributes:
        brief: whether loops, repetition and curves are left at nothing, which take longest.
    """

    folder: Path
    brief: bool = False
    manifest: Mapping[str, Any] = field(init=False)
    records: Mapping[frames.Key, frames.Stored] = field(init=False)

    def __post_init__(self) -> None:
        self.manifest = frames.manifest(self.folder)
        self.records = frames.records(self.folder)

    @property
    def config(self) -> Mapping[str, Any]:
        """The keys of the sweep."""
        found: Mapping[str, Any] = self.manifest["config"]
        return found

    @property
    def factor(self) -> int | None:
        """The cap as times full attention's length; None for a number."""
        times, of_full, _ = str(self.config["cap"]).partition("x-full")
        return int(times) if of_full else None

    @property
    def smaller(self) -> list[int]:
        """The powers of two below it."""
        return [2**n for n in range(1, 64) if 2**n < (self.factor or 0)]

    def lines(
        self, detectors: list[Mapping[str, Any]], factor: int | None = None
    ) -> Iterator[Line]:
        """Every cell of the plan without a detector and under each, which no null is.

        Args:
            detectors: under which.
            factor: a smaller cap.
        """
        cells = self.manifest["plan"]["cells"]
        called = _called({cell["dataset"] for cell in cells})
        for cell in cells:
            named = {**cell, "dataset": called[cell["dataset"]]}
            for detector in (None, *detectors):
                if detector is None or cell.get("role") != "null":
                    yield Line(named, detector, dict(self._samples(cell, detector, factor)))

    def _samples(
        self, cell: Mapping[str, Any], detector: Mapping[str, Any] | None, factor: int | None
    ) -> Iterator[tuple[tuple[str, int], Sample]]:
        plan = self.manifest["plan"]
        (problems,) = (
            one["problems"]
            for one in plan["items"]
            if (one["model"], one["dataset"]) == (cell["model"], cell["dataset"])
        )
        for item, prompt, gold, scorer, room in problems:
            left = None if self.config.get("beyond_positions") else room
            cap = self._cap(cell, item, prompt, left, factor)
            for index in range(plan["samples_per_problem"]):
                sample = self._sample(
                    cell, detector, item, prompt, Answer(scorer, gold), index, cap
                )
                cut = sample.status == "capped"
                at_end = room is not None and sample.paid >= room + (0 if cut else 1)
                yield sample.at, replace(sample, at_end=at_end)

    def _sample(
        self,
        cell: Mapping[str, Any],
        detector: Mapping[str, Any] | None,
        item: str,
        prompt: str,
        gold: Answer,
        index: int,
        cap: int,
    ) -> Sample:
        record = self.records.get(frames.key_of(cell, item, prompt, index))
        if record is None:
            return Sample(item, index, "missing")
        if record.trace is None:
            return Sample(item, index, record.meta["status"])
        if record.meta["finish"] == "length" and record.meta["tokens"] < cap:
            return Sample(item, index, "missing")
        trace = Trace(record, cap, self.brief)
        if detector is None:
            plain = trace.sample(item, index, gold, None)
            return plain if self.brief else replace(plain, **trace.wasted(gold))
        verdict = trace.verdict(detector)
        wasted = {} if self.brief else trace.wasted(gold)
        if verdict is not None:
            wasted = {k: w - min(w, trace.tokens - verdict.step) for k, w in wasted.items()}
        if detector["on_stop"]["name"] == "stop":
            return replace(trace.sample(item, index, gold, verdict), **wasted)
        if verdict is not None:
            acted = self.records.get(frames.key_of(cell, item, prompt, index, detector))
            if acted is None:
                return Sample(item, index, "missing")
            if acted.trace is None:
                return Sample(item, index, acted.meta["status"])
            trace = Trace(acted, cap - len(acted.trace["dropped"]), self.brief)
        found = trace.sample(item, index, gold, None, acted=verdict is not None)
        return replace(found, **wasted)

    def _cap(
        self,
        cell: Mapping[str, Any],
        item: str,
        prompt: str,
        left: int | None = None,
        factor: int | None = None,
    ) -> int:
        """Most tokens of every run of a problem, after the longest of full attention's.

        Args:
            left: by the model's positions; None: as many as one likes.
        """
        own = int(self.config["max_new_tokens"])
        if self.factor is None:
            own = min(int(self.config["cap"]), own)
        if left is not None:
            own = min(own, left)
        if self.factor is None or is_baseline(cell):
            return own
        (full,) = (
            one
            for one in self.manifest["plan"]["cells"]
            if is_baseline(one)
            and (one["model"], one["dataset"]) == (cell["model"], cell["dataset"])
        )
        stored = (
            self.records.get(frames.key_of(full, item, prompt, index))
            for index in range(self.manifest["plan"]["samples_per_problem"])
        )
        ran = [record for record in stored if record is not None and record.trace is not None]
        if not ran:
            return own
        cap = (factor or self.factor) * max(min(int(one.meta["tokens"]), own) for one in ran)
        if left is not None:
            cap = min(cap, left)
        cut = any(one.meta["finish"] == "length" or one.meta["tokens"] > own for one in ran)
        return min(cap, own) if cut else cap


def is_baseline(cell: Mapping[str, Any]) -> bool:
    """Full attention without a penalty: what all are measured against."""
    plain = cell["backend"]["name"] == "full" and not cell["penalties"]
    return plain and cell.get("role") != "null"


class Trace:
    """A stored trace within a cap."""

    def __init__(self, record: frames.Stored, cap: int, brief: bool = False) -> None:
        stored = record.trace
        assert stored is not None
        self.stored, self.meta, self.brief = stored, record.meta, brief
        text = stored["pieces"]["text"].encode(stored["pieces"]["encoding"])
        ends = np.cumsum([0, *stored["pieces"]["lengths"]]).tolist()
        self.pieces = [text[a:b] for a, b in itertools.pairwise(ends)]
        self.whole = len(self.pieces)
        self.tokens = min(self.whole, cap)
        self.eos = stored["finish"] == "eos" and self.whole <= cap

    def verdict(self, detector: Mapping[str, Any]) -> Fired | None:
        """Where a detector fires before the sequence ends by itself or at its cap."""
        prompt = self.stored["prompt_bytes"]
        found = fired(
            detector,
            prompt["text"].encode(prompt["encoding"]),
            self.pieces[: self.tokens],
            self.stored["signals"],
        )
        # The end of text and the cap come before a verdict at the same token.
        return None if found is None or found.step >= self.tokens else found

    def wasted(self, gold: Answer) -> dict[str, int]:
        """Tokens that say again what stood there, of a text that the cap cut short of an answer."""
        text = b"".join(self.pieces[: self.tokens]).decode(errors="replace")
        if self.eos or gold.given(text, False):
            return {"loop": 0, "tail": 0}
        ids = np.array(self.stored["new_ids"][: self.tokens])
        n, loop, tail = len(ids), 0, 0
        for period in range(1, n // 2 + 1):
            differ = np.flatnonzero(ids[period:] != ids[:-period])
            alike = n - period - (differ[-1] + 1 if len(differ) else 0)
            loop = max(loop, int(alike) if alike >= period else 0)
        passages = [tuple(ids[end - 16 : end].tolist()) for end in range(16, n + 1)]
        first: dict[tuple[int, ...], int] = {}
        again = [False] * min(15, n)
        again += [first.setdefault(passage, at) < at for at, passage in enumerate(passages)]
        for length in range(100, n + 1):
            if sum(again[n - length :]) * 20 >= 19 * length:
                tail = length
        return {"loop": loop, "tail": tail}

    def sample(
        self,
        item: str,
        index: int,
        gold: Answer,
        verdict: Fired | None,
        acted: bool | None = None,
    ) -> Sample:
        """Its numbers; `acted`: under a detector that acts, whether it fired."""
        stored = self.stored
        kept, step = verdict[::-1] if verdict else (self.tokens, self.tokens)
        ended = self.eos and verdict is None
        # Of one that went on after its verdict, a second one ends the row.
        again = bool(acted) and stored["finish"] not in ("eos", "length")
        text = b"".join(self.pieces[: kept - ended])
        ids = np.array(stored["new_ids"][:kept])
        dropped = len(stored["dropped"])
        cost = self._cost(step)
        steps = step + dropped - 1
        timed = acted is None
        return Sample(
            problem=item,
            index=index,
            status="stopped" if verdict or again else "finished" if ended else "capped",
            fired=verdict is not None or bool(acted),
            tokens=kept,
            ids=tuple(ids.tolist()),
            paid=step + dropped,
            solved=gold.given(text.decode(errors="replace"), ended),
            reused=min(stored["reused_tokens"], step),
            repeated=not self.brief
            and any(
                first_run(ids[p:] == ids[:-p], 19 * p) is not None
                for p in range(1, len(ids) // 20 + 1)
            ),
            curve=() if self.brief else self._curve(kept, text),
            keys=cost["keys_read"],
            read_mean=_mean(cost["read_sum"], steps),
            dense_mean=_mean(cost["dense_read_sum"], steps),
            kept_max=self._most("keys_kept_max", step),
            read_max=self._most("keys_read_max", step),
            bytes_peak=self._peak(step),
            prefill=stored["prefill_sec"] if timed else None,
            decode=cost["seconds"] if timed else None,
            byte_sec=self._byte_seconds(step) if timed else None,
            setting=self._setting(),
        )

    def _setting(self) -> tuple[str, int] | None:
        alone = self.meta["workers"] == 1  # several slow each other down
        return (self.meta["sweep"], self.meta["batch_size"]) if alone else None

    def _cost(self, tokens: int) -> dict[str, float | None]:
        """Cost of the first tokens: as recorded, on a straight line between two recordings."""
        checks = self.stored["checks"]
        after = next(check for check in checks if check["tokens"] >= tokens)
        before = dict.fromkeys(after, 0.0) | {"cache_bytes": after["cache_bytes"]}
        before = max(
            (check for check in checks if check["tokens"] < tokens),
            key=lambda check: int(check["tokens"]),
            default=before,
        )
        share = (tokens - before["tokens"]) / (after["tokens"] - before["tokens"])
        return {
            name: None
            if after[name] is None or before[name] is None
            else before[name] + (after[name] - before[name]) * share
            for name in after
        }

    def _most(self, name: str, tokens: int) -> int | None:
        """A maximum over steps: of a sequence cut short, no more than the tokens there were."""
        there = len(self.stored["prompt_ids"]) + tokens - 1
        most: int | None = self.stored[name]
        return most if tokens == self.whole or most is None else min(most, there)

    def _peak(self, tokens: int) -> int:
        """Most bytes held: of a sequence cut short, at its recordings up to there."""
        if tokens == self.whole:
            return int(self.stored["cache_bytes_peak"])
        marks = [check["tokens"] for check in self.stored["checks"] if check["tokens"] < tokens]
        return int(max(self._cost(at)["cache_bytes"] or 0.0 for at in (*marks, tokens)))

    def _byte_seconds(self, tokens: int) -> float | None:
        """Bytes held times seconds held, on straight lines between recordings."""
        marks = [c["tokens"] for c in self.stored["checks"] if c["tokens"] < tokens]
        costs = [self._cost(at) for at in (*marks, tokens)]
        if any(cost["seconds"] is None for cost in costs):
            return None
        held = np.array([costs[0]["cache_bytes"], *(cost["cache_bytes"] for cost in costs)])
        seconds = np.array([0.0, *(cost["seconds"] for cost in costs)])
        return float(np.trapezoid(held, seconds))

    def _curve(self, tokens: int, text: bytes) -> tuple[tuple[int, int, int], ...]:
        """(tokens, bytes, compressed bytes) at every recorded check and at the end."""
        marks = {at for at, _, _ in self.stored["curve"] if at < tokens}
        found = []
        for at in sorted(marks):
            raw = b"".join(self.pieces[:at])
            found.append((at, len(raw), len(zlib.compress(raw, 6))))
        return (*found, (tokens, len(text), len(zlib.compress(text, 6))))


def _mean(total: float | None, steps: int) -> float | None:
    return None if total is None or steps < 1 else total / steps
