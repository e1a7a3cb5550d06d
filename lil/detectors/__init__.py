"""Detectors that watch a generation and may end it, one file each; their actions and replay.

A detector is a name, an import path `package.module:Class`, or another package's entry
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
from lil.detectors.base.region import OUTSIDE, RegionTracker, ends_thinking, is_answering
from lil.detectors.base.replay import replay, require_stop, watch_trace
from lil.detectors.base.specs import (
    CALIBRATED,
    DETECTORS,
    Defaults,
    build,
    calibrated,
    load,
    opened,
    part_specs,
    spec_of,
    to_spec,
)
from lil.detectors.guardian import Guardian

__all__ = [
    "ACTIONS",
    "CALIBRATED",
    "DETECTORS",
    "OUTSIDE",
    "Action",
    "Answer",
    "Defaults",
    "Densify",
    "Detector",
    "Guardian",
    "OnStop",
    "Regenerate",
    "RegionTracker",
    "Stop",
    "Verdict",
    "Watcher",
    "action",
    "build",
    "calibrated",
    "cue_ids",
    "describe",
    "ends_thinking",
    "find",
    "get",
    "is_answering",
    "known",
    "load",
    "names",
    "opened",
    "part_specs",
    "replay",
    "require_stop",
    "spec_of",
    "to_spec",
    "watch_trace",
]

names, get, find = DETECTORS.names, DETECTORS.get, DETECTORS.find
known, describe = DETECTORS.known, DETECTORS.describe
