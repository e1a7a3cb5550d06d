"""Detectors that watch a generation and may end it: one file each.

`names()` reads the folder and `get(name, ...)` imports the file on demand, so adding a detector
touches no table.
"""

from __future__ import annotations

from lil.detectors._protocol import Acting, Detector, Reading, Verdict, follows
from lil.detectors.guardian import Guardian
from lil.registry import ClassFolder

__all__ = [
    "Acting",
    "Detector",
    "Guardian",
    "Reading",
    "Verdict",
    "describe",
    "find",
    "follows",
    "get",
    "names",
]

_FOLDER: ClassFolder[Detector] = ClassFolder(__name__, "detector")
names, get, find, describe = _FOLDER.names, _FOLDER.get, _FOLDER.find, _FOLDER.describe
