"""Detectors over stored traces: every early stop from one decode."""

from __future__ import annotations

from attention.errors import InvalidValue
from lil.detectors import Detector, Reading, Verdict
from lil.trace import Trace


def replay(trace: Trace, detector: Detector, max_tokens: int | None = None) -> Verdict | None:
    """The verdict `detector` would have given had it watched this generation live, or None.

    A detector does not change tokens before it fires, so a trace decoded without one serves every
    detector. As in a live run `eos` beats a verdict at the same token and so does the cap: a
    verdict at the last token of a trace that ended by length is None. `detector` is a template and
    keeps its state. One that reads hidden states takes from the trace what it made of them then.
    `Verdict.token` tokens are kept, `Verdict.step` were decoded and paid.

    Args:
        trace: a stored generation.
        detector: any `Detector`.
        max_tokens: a cap below the trace's own length, in generated tokens.

    Raises:
        InvalidValue: the trace was acted upon, so that it is no longer what a detector would have
            seen; or the detector reads hidden states, and the trace has no such signal.
    """
    if trace.action is not None or trace.dropped:
        raise InvalidValue("trace", "one that was cut and went on", "a trace decoded to its end")
    seen = trace.text_pieces
    if trace.finish == "length":
        seen = seen[:-1]
    if max_tokens is not None:
        seen = seen[: max(0, max_tokens - 1)]
    watcher = detector.clone()
    watcher.start(prompt=trace.prompt_bytes)
    if isinstance(watcher, Reading):
        if watcher.signal not in trace.signals:
            allowed = f"a trace decoded with probes=[{detector.name}], with these weights"
            raise InvalidValue("signals", ", ".join(trace.signals) or None, allowed)
        watcher.recall(trace.signals[watcher.signal])
    return watcher.update(seen)
