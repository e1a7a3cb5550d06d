"""Detectors by name."""

from attention.registry import Registry
from lil.detectors._contract.base import Detector

DETECTORS: Registry[Detector] = Registry(
    "detector",
    ("lil.detectors", "lil.detectors.combined"),
    "lil.detectors",
    lambda: Detector,
)
