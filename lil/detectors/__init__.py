"""Detectors that watch a generation and may end it, one file each; actions and replay beside them.

A detector is found by name, by import path `package.module:Class`, or by another package's entry
point of the group `lil.detectors`.
"""

from lil.detectors.base.actions import (
    ACTIONS,
    Action,
    Answer,
    Densify,
    OnStop,
    Regenerate,
    Stop,
    action,
    cue_ids,
)
from lil.detectors.base.base import Detector, Verdict, Watcher
from lil.detectors.base.region import OUTSIDE, Place, ends_thinking, is_answering
from lil.detectors.base.registry import DETECTORS
from lil.detectors.base.replay import replay, require_stop, watch_trace
from lil.detectors.base.specs import (
    CALIBRATED,
    calibrated,
    described,
    load,
    made,
    opened,
    parts,
    spec_of,
)
from lil.detectors.guardian import Guardian

__all__ = [
    "ACTIONS",
    "CALIBRATED",
    "DETECTORS",
    "OUTSIDE",
    "Action",
    "Answer",
    "Densify",
    "Detector",
    "Guardian",
    "OnStop",
    "Place",
    "Regenerate",
    "Stop",
    "Verdict",
    "Watcher",
    "action",
    "calibrated",
    "cue_ids",
    "describe",
    "described",
    "ends_thinking",
    "find",
    "get",
    "is_answering",
    "known",
    "load",
    "made",
    "names",
    "opened",
    "parts",
    "replay",
    "require_stop",
    "spec_of",
    "watch_trace",
]

names, get, find, known, describe = (
    DETECTORS.names,
    DETECTORS.get,
    DETECTORS.find,
    DETECTORS.known,
    DETECTORS.describe,
)
