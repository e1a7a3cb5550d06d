"""Compression meters, early stopping and the batched decode loop.

`decode` generates and records a `Trace` a prompt; a `Guardian` watches each through a `Meter`;
`replay` puts any detector over a stored trace; `curve` shows how a text compresses as it grows.
"""

from typing import TYPE_CHECKING

from attention.lazy import lazy

if TYPE_CHECKING:
    from lil import codecs as codecs
    from lil import detectors as detectors
    from lil import penalties as penalties
    from lil.curves import curve as curve
    from lil.curves import token_curve as token_curve
    from lil.decoding import decode as decode
    from lil.decoding import stream as stream
    from lil.detectors import Detector as Detector
    from lil.detectors import Guardian as Guardian
    from lil.detectors import Verdict as Verdict
    from lil.detectors.budget import Budget as Budget
    from lil.detectors.chopper import Chopper as Chopper
    from lil.detectors.cycle import Cycle as Cycle
    from lil.meter import Meter as Meter
    from lil.penalties import LZPenalty as LZPenalty
    from lil.pieces import token_bytes as token_bytes
    from lil.replaying import replay as replay
    from lil.stopping import StopOn as StopOn
    from lil.trace import Check as Check
    from lil.trace import Trace as Trace

_HOME = {
    "Budget": "detectors.budget",
    "Check": "trace",
    "Chopper": "detectors.chopper",
    "Cycle": "detectors.cycle",
    "Detector": "detectors",
    "Guardian": "detectors",
    "LZPenalty": "penalties",
    "Meter": "meter",
    "StopOn": "stopping",
    "Trace": "trace",
    "Verdict": "detectors",
    "codecs": "codecs",
    "curve": "curves",
    "decode": "decoding",
    "detectors": "detectors",
    "penalties": "penalties",
    "replay": "replaying",
    "stream": "decoding",
    "token_bytes": "pieces",
    "token_curve": "curves",
}

__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy(__name__, _HOME)
