"""Naive oracles: the attention specification in numpy and loops, sharing no code with `attention`.

`METHODS` maps a backend's name to the layer that computes it. Everything here runs one sequence
at a time and recomputes from a list of slots, so that it can be compared with the specification.
"""

from __future__ import annotations

from .adamas import AdamasLayer
from .caote import CAOTELayer
from .duo import DuoLayer
from .full import FullLayer
from .gkv import GKVLayer
from .h2o import H2OLayer
from .infllm import InfLLMLayer
from .kascade import KascadeLayer
from .layer import Layer, Slot
from .lazy import LazyLayer
from .lessismore import LessIsMoreLayer
from .naive_model import NaiveModel, rope_table
from .noise import NoiseLayer
from .oracle_topk import TrueTopLayer
from .quest_moments import QuestMomentsLayer
from .raas import RaaSLayer
from .random_blocks import RandomBlocksLayer
from .rkv_buffer import RKVBufferLayer
from .sink import SinkLayer
from .snapkv import SnapKVLayer
from .tova import TOVALayer
from .vase import VaSELayer
from .window import WindowLayer

METHODS: dict[str, type[Layer]] = {
    "full": FullLayer,
    "sink": SinkLayer,
    "h2o": H2OLayer,
    "quest": QuestMomentsLayer,
    "infllm": InfLLMLayer,
    "window": WindowLayer,
    "tova": TOVALayer,
    "random": RandomBlocksLayer,
    "oracle": TrueTopLayer,
    "raas": RaaSLayer,
    "rkv": RKVBufferLayer,
    "snapkv": SnapKVLayer,
    "noise": NoiseLayer,
    "caote": CAOTELayer,
    "adamas": AdamasLayer,
    "vase": VaSELayer,
    "gkv": GKVLayer,
    "lazy": LazyLayer,
    "duo": DuoLayer,
    "lessismore": LessIsMoreLayer,
    "kascade": KascadeLayer,
}

__all__ = ["METHODS", "Layer", "NaiveModel", "Slot", "rope_table"]
