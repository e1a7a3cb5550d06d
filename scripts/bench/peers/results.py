"""Peers in turn, and rows of what was measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from attention.errors import InvalidValue
from peers.work import Measured, PeerError, Tokens, parting

WARM = 16  # tokens of an untimed first run
PAUSE = 0.3  # seconds between runs, for threads that wait actively to go to sleep


def measure(
    found: Sequence[Measured],
    repeats: int,
    limit: int,
    progress: Callable[[str], None] = lambda _: None,
    pause: float = PAUSE,
) -> None:
    """Run every peer once untimed and short, then all of them in turn, so many times.

    One that fails is out, with its reason.

    Args:
        found: filled in; those with a reason are left as they are.
        repeats: timed runs of each.
        limit: most tokens of an output.
        progress: told what runs next.
        pause: seconds before each run.
    """
    for turn in range(1 + repeats):
        for one in found:
            if one.reason is not None or one.run is None:
                continue
            progress(f"{one.peer.name}, run {turn} of {repeats}" if turn else one.peer.name)
            time.sleep(pause)
            try:
                before = one.beside() if turn and one.beside is not None else None
                time.sleep(pause)
                tokens, seconds = one.run(limit if turn else min(WARM, limit))
            except (PeerError, InvalidValue) as error:
                one.reason = str(error)
                continue
            if turn:
                one.seconds.append(seconds)
                if before is not None:
                    one.beside_seconds.append(before)
                one.tokens = tokens


def rows_of(found: Sequence[Measured], expected: Tokens, engine: str) -> list[dict[str, Any]]:
    """A row for each peer, with ratios to the others where these have run.

    Args:
        found: measured peers.
        expected: our full attention's tokens of every prompt.
        engine: whose full attention of one process the others are compared with.
    """
    rate = {one.peer: _rate(one) for one in found}

    def of(**wanted: Any) -> float | None:
        return next(
            (
                rate[one.peer]
                for one in found
                if all(getattr(one.peer, name) == value for name, value in wanted.items())
            ),
            None,
        )

    one_at_a_time, vllm = of(kind="one"), of(kind="vllm")
    rows = []
    for one in found:
        peer, ours = one.peer, one.peer.backend is not None
        # Given tokens are compared with given tokens, read by the same engine in as many processes.
        full = of(
            backend="full",
            engine=peer.engine if peer.forced else engine,
            compiled=peer.compiled if peer.forced else False,
            processes=peer.processes if peer.forced else 1,
            forced=peer.forced,
        )
        rows.append(
            {
                "peer": peer.name,
                "kind": peer.kind,
                "backend": peer.backend,
                "engine": peer.engine,
                "processes": peer.processes,
                "compiled": peer.compiled,
                "forced": peer.forced,
                "prompts": len(peer.places),
                "tokens": None if one.tokens is None else sum(map(len, one.tokens)),
                "seconds": statistics.median(one.seconds) if one.seconds else None,
                "all_seconds": one.seconds,
                "tokens_per_s": rate[peer],
                "times_one": _ratio(rate[peer], one_at_a_time),
                "times_vllm": _ratio(rate[peer], vllm),
                "times_full": _times_full(one, _ratio(rate[peer], full)) if ours else None,
                "of_bound": _of_bound(one, expected),
                **_compared(one, expected),
                "reason": one.reason,
            }
        )
    return rows


def _compared(one: Measured, expected: Tokens) -> dict[str, Any]:
    """How many outputs equal ours, and where the others part; nothing for a sparse method's own."""
    if one.tokens is None or not one.peer.full:
        return {"same": None, "differing": []}
    pairs = [
        (place, parting(row, expected[place]))
        for place, row in zip(one.peer.places, one.tokens, strict=True)
    ]
    apart = [{"prompt": place, "token": token} for place, token in pairs if token is not None]
    return {"same": len(pairs) - len(apart), "differing": apart}


def _rate(one: Measured) -> float | None:
    """Tokens a second in the median run."""
    if one.tokens is None or not one.seconds:
        return None
    return sum(map(len, one.tokens)) / statistics.median(one.seconds)


def _paired(one: Measured) -> float | None:
    """The median of what was run beside by the run itself: the machine's speed changes."""
    if not one.beside_seconds:
        return None
    pairs = zip(one.beside_seconds, one.seconds, strict=True)
    return statistics.median(beside / seconds for beside, seconds in pairs)


def _times_full(one: Measured, of_rates: float | None) -> float | None:
    paired = None if one.peer.backend == "full" else _paired(one)
    return of_rates if paired is None else paired


def _of_bound(one: Measured, expected: Tokens) -> float | None:
    """The share of the bound that full attention reaches, by tokens a second."""
    paired = _paired(one) if one.peer.backend == "full" else None
    if paired is None or one.tokens is None:
        return None
    return paired * sum(map(len, one.tokens)) / sum(map(len, expected))


def _ratio(rate: float | None, other: float | None) -> float | None:
    return None if rate is None or not other else rate / other


def reached(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What full attention comes to, in one process and as it wins; forced sparse rows that lose.

    Args:
        rows: from `rows_of`.
    """
    full = [
        row
        for row in rows
        if row["backend"] == "full" and not row["forced"] and row["seconds"] is not None
    ]

    def said(some: Sequence[dict[str, Any]]) -> dict[str, Any]:
        best = max(some, key=lambda row: float(row["tokens_per_s"]), default=None)
        if best is None:
            return dict.fromkeys(("best", "of_bound", "times_vllm", "times_one"))
        return {
            "best": best["peer"],
            "of_bound": best["of_bound"],
            "times_vllm": best["times_vllm"],
            "times_one": best["times_one"],
        }

    slower = [
        row["peer"]
        for row in rows
        if row["forced"] and row["backend"] != "full" and (row["times_full"] or 1) < 1
    ]
    return {
        "one_process": said([row for row in full if row["processes"] == 1]),
        "processes": said([row for row in full if row["processes"] > 1]),
        "sparse_slower_than_full": slower,
    }
