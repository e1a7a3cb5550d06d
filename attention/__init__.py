"""Sparse attention backends for transformers models, applied and removed by a `with` block.

with attention.Sink(budget=1024).on(model) as cache:
    model.generate(**inputs, past_key_values=cache)
"""

from attention.backend import Backend
from attention.cache import AttentionCache
from attention.errors import BudgetExceeded, InvalidValue
from attention.methods.full import Full
from attention.methods.h2o import H2O
from attention.methods.infllm import InfLLM
from attention.methods.quest import Quest
from attention.methods.sink import Sink
from attention.registry import describe, get, names
from attention.stats import CacheStats, LayerStats, RowStats

__all__ = [
    "H2O",
    "AttentionCache",
    "Backend",
    "BudgetExceeded",
    "CacheStats",
    "Full",
    "InfLLM",
    "InvalidValue",
    "LayerStats",
    "Quest",
    "RowStats",
    "Sink",
    "describe",
    "get",
    "names",
]
