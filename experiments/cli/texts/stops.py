"""Where detectors would have stopped a text: over stored traces, or texts from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attention.errors import InvalidValue
from experiments.store.labels import labels
from lil import Detector, Verdict


def require_texts(detectors: Sequence[Detector]) -> None:
    """Refuse detectors that need more than a text, or go on after a verdict.

    Raises:
        InvalidValue: one reads hidden states, or its action writes on.
    """
    from lil.detectors import require_stop

    for one in detectors:
        if one.signals:
            allowed = "one that reads texts: hidden states of a text from elsewhere are not known"
            raise InvalidValue("detector", one.name, allowed)
        require_stop(one, "what would follow in a text from elsewhere nobody knows")


def watched(
    pieces: Sequence[bytes], detectors: Sequence[Detector], prompt: bytes = b""
) -> list[dict[str, Any]]:
    """Where each detector would have stopped a text, read to its end.

    Args:
        pieces: bytes of its tokens.
        detectors: that read texts alone.
        prompt: what stood before the text.
    """
    return [
        told(label, pieces, one.watch(prompt).update(pieces))
        for label, one in zip(labels(detectors), detectors, strict=True)
    ]


def told(label: str, pieces: Sequence[bytes], verdict: Verdict | None) -> dict[str, Any]:
    """A verdict as documents have it: `fired_at` tokens were read, `kept` of them stay.

    Args:
        label: what the detector is called.
        pieces: bytes of the text's tokens.
        verdict: None where it was not stopped.
    """
    kept = len(pieces) if verdict is None else verdict.token
    return {
        "detector": label,
        "fired_at": None if verdict is None else verdict.step,
        "kept": kept,
        "kept_bytes": sum(map(len, pieces[:kept])),
        "tokens": len(pieces),
        "bytes": sum(map(len, pieces)),
        "evidence": None if verdict is None else dict(verdict.evidence),
    }


def sentence(one: dict[str, Any]) -> str:
    """A verdict in words."""
    if one["fired_at"] is None:
        return f"{one['detector']} does not stop it ({one['tokens']:,} tokens)"
    left = 100 * one["kept"] / one["tokens"]
    return (
        f"{one['detector']} stops it at token {one['fired_at']:,} of {one['tokens']:,}: "
        f"{one['kept']:,} tokens ({one['kept_bytes']:,} bytes, {left:.0f}%) are left"
    )
