"""What a method is, and the one door through which its author imports all it takes."""

from attention.contract.backend import AUTO, Backend, Dropping, Full, check_pages
from attention.core.kernels import over_group
from attention.core.step import Counts, Step
from attention.errors import (
    InvalidValue,
    check_choice,
    check_flag,
    check_int,
    check_number,
    check_share,
)
from attention.layers.compressing import Compressing
from attention.layers.evicting import Evicting
from attention.layers.layer import Geometry, KeepAll, Layer
from attention.layers.paged import Paged
from attention.layers.selecting import Choice, Selecting

__all__ = [
    "AUTO",
    "Backend",
    "Choice",
    "Compressing",
    "Counts",
    "Dropping",
    "Evicting",
    "Full",
    "Geometry",
    "InvalidValue",
    "KeepAll",
    "Layer",
    "Paged",
    "Selecting",
    "Step",
    "check_choice",
    "check_flag",
    "check_int",
    "check_number",
    "check_pages",
    "check_share",
    "over_group",
]
