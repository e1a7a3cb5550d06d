"""Compression meters, early stopping and the batched decode loop.

`decode` generates and records a `Trace` a prompt; a `Guardian` watches each through a `Meter`;
`replay` puts any detector over a stored trace; `curve` shows how a text compresses as it grows.
"""

from lil import codecs, detectors, penalties
from lil.curves import curve, token_curve
from lil.decoding import decode, stream
from lil.detectors import Detector, Guardian, Verdict
from lil.meter import Meter
from lil.pieces import token_bytes
from lil.replaying import replay
from lil.trace import Check, Trace

__all__ = [
    "Check",
    "Detector",
    "Guardian",
    "Meter",
    "Trace",
    "Verdict",
    "codecs",
    "curve",
    "decode",
    "detectors",
    "penalties",
    "replay",
    "stream",
    "token_bytes",
    "token_curve",
]
