"""Detectors over stored traces: every early stop from one decode."""

from __future__ import annotations

from typing import Any

from attention.errors import InvalidValue
from lil.detectors.base.base import Detector, Verdict, Watcher
from lil.trace import Trace


def replay(trace: Trace, detector: Detector, max_tokens: int | None = None) -> Verdict | None:
    """The verdict `detector` would have given had it watched this generation live, or None.

    `eos` beats a verdict at the same token and so does the cap: a verdict at the last token of a
    trace that ended by length is None. A detector of hidden states reads its signals in the trace.
    `Verdict.token` tokens are kept, `Verdict.step` were decoded and paid.

    Args:
        trace: a stored generation.
        detector: any `Detector` whose verdict ends the generation.
        max_tokens: a cap below the trace's own length, in generated tokens.

    Raises:
        InvalidValue: the trace was acted upon, so that it is no longer what a detector would have
            seen; the detector's action goes on after a verdict; or the trace lacks its signals.
    """
    return replayed(trace, detector, max_tokens).verdict


def replayed(trace: Trace, detector: Detector, max_tokens: int | None = None) -> Watcher[Any]:
    """The watcher of `replay` at its end, which has `seen` what its questions cost."""
    if trace.action is not None or trace.dropped:
        raise InvalidValue("trace", "one that was cut and went on", "a trace decoded to its end")
    seen = trace.text_pieces
    if trace.finish == "length":
        seen = seen[:-1]
    if max_tokens is not None:
        seen = seen[: max(0, max_tokens - 1)]
    watcher = watch_trace(trace, detector)
    watcher.update(seen)
    return watcher


def watch_trace(trace: Trace, detector: Detector) -> Watcher[Any]:
    """A watcher at the beginning of this trace.

    Raises:
        InvalidValue: the detector's action goes on after a verdict, or the trace lacks its signals.
    """
    require_stop(detector, "what follows was not decoded")
    for name in detector.signals - trace.signals.keys():
        allowed = f"a trace decoded with probes=[{detector.name}], with these weights: {name}"
        raise InvalidValue("signals", ", ".join(trace.signals) or None, allowed)
    watcher = detector.watch(trace.prompt_bytes)
    watcher.recall(trace.signals)
    return watcher


def require_stop(detector: Detector, reason: str) -> None:
    """Refuse a detector after whose verdict the generation goes on, for this reason."""
    if not detector.action.ends:
        raise InvalidValue("on_stop", detector.action.name, f"stop ({detector.name}: {reason})")
