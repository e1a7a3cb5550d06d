"""Sparse attention backends for transformers models, applied and removed by a `with` block.

with attention.Sink(budget=1024).on(model) as cache:
    model.generate(**inputs, past_key_values=cache)
"""

from typing import TYPE_CHECKING

from attention.lazy import lazy

if TYPE_CHECKING:
    from attention.backend import Backend as Backend
    from attention.cache import AttentionCache as AttentionCache
    from attention.errors import BudgetExceeded as BudgetExceeded
    from attention.errors import InvalidValue as InvalidValue
    from attention.methods.full import Full as Full
    from attention.methods.h2o import H2O as H2O
    from attention.methods.h2o_uniform import H2OUniform as H2OUniform
    from attention.methods.infllm import InfLLM as InfLLM
    from attention.methods.oracle import Oracle as Oracle
    from attention.methods.quest import Quest as Quest
    from attention.methods.raas import RaaS as RaaS
    from attention.methods.random import Random as Random
    from attention.methods.rkv import RKV as RKV
    from attention.methods.sink import Sink as Sink
    from attention.methods.snapkv import SnapKV as SnapKV
    from attention.methods.tova import TOVA as TOVA
    from attention.methods.window import Window as Window
    from attention.registry import describe as describe
    from attention.registry import get as get
    from attention.registry import names as names
    from attention.stats import CacheStats as CacheStats
    from attention.stats import LayerStats as LayerStats
    from attention.stats import RowStats as RowStats

_HOME = {
    "AttentionCache": "cache",
    "Backend": "backend",
    "BudgetExceeded": "errors",
    "CacheStats": "stats",
    "Full": "methods.full",
    "H2O": "methods.h2o",
    "InfLLM": "methods.infllm",
    "InvalidValue": "errors",
    "LayerStats": "stats",
    "Quest": "methods.quest",
    "RowStats": "stats",
    "Sink": "methods.sink",
    "H2OUniform": "methods.h2o_uniform",
    "Oracle": "methods.oracle",
    "RaaS": "methods.raas",
    "Random": "methods.random",
    "RKV": "methods.rkv",
    "SnapKV": "methods.snapkv",
    "TOVA": "methods.tova",
    "Window": "methods.window",
    "describe": "registry",
    "get": "registry",
    "names": "registry",
}

__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy(__name__, _HOME)
