"""Detectors by name."""

from attention.registry import Registry
from lil.detectors._contract.actions import ACTIONS
from lil.detectors._contract.base import Detector

DETECTORS: Registry[Detector] = Registry(
    "detector",
    ("lil.detectors", "lil.detectors.combined"),
    "lil.detectors",
    lambda: Detector,
    example="guardian(f=250)",
    actions=ACTIONS,
)
