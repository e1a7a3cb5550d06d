from . import detectors as detectors
from . import penalties as penalties
from .acceptance import Acceptance as Acceptance
from .acceptance import acceptance as acceptance
from .compression import codecs as codecs
from .compression.codecs import Codec as Codec
from .compression.curves import curve as curve
from .compression.curves import entropy_bounds as entropy_bounds
from .compression.curves import token_curve as token_curve
from .compression.meter import Meter as Meter
from .decoding import DecodeOptions as DecodeOptions
from .decoding import Request as Request
from .decoding import decode as decode
from .decoding import stream as stream
from .detectors import Action as Action
from .detectors import Detector as Detector
from .detectors import Guardian as Guardian
from .detectors import Verdict as Verdict
from .detectors import Watcher as Watcher
from .detectors import replay as replay
from .detectors.agreement import Agreement as Agreement
from .detectors.budget import Budget as Budget
from .detectors.chopper import Chopper as Chopper
from .detectors.combined.both import Both as Both
from .detectors.combined.either import Either as Either
from .detectors.confidence import Confidence as Confidence
from .detectors.cycle import Cycle as Cycle
from .detectors.entropy import Entropy as Entropy
from .detectors.margin import Margin as Margin
from .detectors.recurrence import Recurrence as Recurrence
from .detectors.stall import Stall as Stall
from .penalties import LZPenalty as LZPenalty
from .penalties import Penalty as Penalty
from .stop_on import StopOn as StopOn
from .token_table import token_bytes as token_bytes
from .trace import Cost as Cost
from .trace import Trace as Trace

__all__ = [
    "Acceptance",
    "Action",
    "Agreement",
    "Both",
    "Budget",
    "Chopper",
    "Codec",
    "Confidence",
    "Cost",
    "Cycle",
    "DecodeOptions",
    "Detector",
    "Either",
    "Entropy",
    "Guardian",
    "LZPenalty",
    "Margin",
    "Meter",
    "Penalty",
    "Recurrence",
    "Request",
    "Stall",
    "StopOn",
    "Trace",
    "Verdict",
    "Watcher",
    "acceptance",
    "codecs",
    "curve",
    "decode",
    "detectors",
    "entropy_bounds",
    "penalties",
    "replay",
    "stream",
    "token_bytes",
    "token_curve",
]
