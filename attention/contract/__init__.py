"""The base class of methods, and everything that an author of a method imports."""

from attention.contract.backend import AUTO, Backend, Dropping, Full, check_pages
from attention.core import devices
from attention.core.kernels import (
    BLOCK_ELEMENTS,
    added,
    dense,
    dense_with_mass,
    group,
    hide,
    logits,
    over_group,
    softmax,
    spread,
    take_pages,
    top,
)
from attention.core.ropes import Turn, rotate
from attention.core.slots import Slots
from attention.core.step import Counts, Step
from attention.engines import QKV, AttentionOutput
from attention.errors import (
    InvalidValue,
    check_choice,
    check_flag,
    check_int,
    check_number,
    check_share,
)
from attention.layers.compressing import Compressing, check_window
from attention.layers.evicting import Evicting
from attention.layers.layer import Geometry, KeepAll, Layer, Method, check_prompt, row_lists
from attention.layers.paged import Paged
from attention.layers.selecting import Choice, Selecting

__all__ = [
    "AUTO",
    "BLOCK_ELEMENTS",
    "QKV",
    "AttentionOutput",
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
    "Method",
    "Paged",
    "Selecting",
    "Slots",
    "Step",
    "Turn",
    "added",
    "check_choice",
    "check_flag",
    "check_int",
    "check_number",
    "check_pages",
    "check_prompt",
    "check_share",
    "check_window",
    "dense",
    "dense_with_mass",
    "devices",
    "group",
    "hide",
    "logits",
    "over_group",
    "rotate",
    "row_lists",
    "softmax",
    "spread",
    "take_pages",
    "top",
]
