"""Detectors that watch a generation and may end it, one file each; their actions and replay.

A detector is a name, an import path `package.module:Class`, or another package's entry
point of the group `lil.detectors`.
"""

from lil.detectors.base.actions import ACTIONS as ACTIONS
from lil.detectors.base.actions import Action as Action
from lil.detectors.base.actions import Answer as Answer
from lil.detectors.base.actions import Densify as Densify
from lil.detectors.base.actions import OnStop as OnStop
from lil.detectors.base.actions import Regenerate as Regenerate
from lil.detectors.base.actions import Reheat as Reheat
from lil.detectors.base.actions import Stop as Stop
from lil.detectors.base.actions import action as action
from lil.detectors.base.actions import cue_ids as cue_ids
from lil.detectors.base.actions import cues_of as cues_of
from lil.detectors.base.asking import asked as asked
from lil.detectors.base.base import Detector as Detector
from lil.detectors.base.base import Verdict as Verdict
from lil.detectors.base.base import Watcher as Watcher
from lil.detectors.base.region import OUTSIDE as OUTSIDE
from lil.detectors.base.region import RegionTracker as RegionTracker
from lil.detectors.base.region import ends_thinking as ends_thinking
from lil.detectors.base.region import is_answering as is_answering
from lil.detectors.base.replay import replay as replay
from lil.detectors.base.replay import replayed as replayed
from lil.detectors.base.replay import require_stop as require_stop
from lil.detectors.base.replay import watch_trace as watch_trace
from lil.detectors.base.specs import CALIBRATED as CALIBRATED
from lil.detectors.base.specs import DETECTORS as DETECTORS
from lil.detectors.base.specs import Defaults as Defaults
from lil.detectors.base.specs import build as build
from lil.detectors.base.specs import calibrated as calibrated
from lil.detectors.base.specs import load as load
from lil.detectors.base.specs import opened as opened
from lil.detectors.base.specs import part_specs as part_specs
from lil.detectors.base.specs import spec_of as spec_of
from lil.detectors.base.specs import to_spec as to_spec
from lil.detectors.guardian import Guardian as Guardian

names, get, find, known = DETECTORS.names, DETECTORS.get, DETECTORS.find, DETECTORS.known
