"""Detectors over stored traces: every early stop from one decode."""

from __future__ import annotations

from lil.detectors import Detector, Verdict
from lil.trace import Trace


def replay(trace: Trace, detector: Detector, max_tokens: int | None = None) -> Verdict | None:
    """The verdict `detector` would have given had it watched this generation live, or None.

    A detector does not change tokens before it fires, so a trace decoded without one serves every
    detector. As in a live run `eos` beats a verdict at the same token and so does the cap: a
    verdict at the last token of a trace that ended by length is None. `detector` is a template and
    keeps its state.

    Args:
        trace: a stored generation.
        detector: any `Detector`.
        max_tokens: a cap below the trace's own length, in generated tokens.
    """
    seen = trace.text_pieces
    if trace.finish == "length":
        seen = seen[:-1]
    if max_tokens is not None:
        seen = seen[: max(0, max_tokens - 1)]
    watcher = detector.clone()
    watcher.start(prompt=trace.prompt_bytes)
    return watcher.update(seen)
