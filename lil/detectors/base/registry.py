"""Detectors by name."""

from attention.registry import Registry
from lil.detectors.base.actions import ACTIONS
from lil.detectors.base.base import Detector

DETECTORS: Registry[Detector] = Registry(
    "detector",
    ("lil.detectors", "lil.detectors.combined"),
    "lil.detectors",
    lambda: Detector,
    example="guardian(f=250)",
    actions=ACTIONS,
)
