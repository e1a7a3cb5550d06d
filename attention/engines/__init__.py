"""What moves the bytes of keys and values: one set of operations, several ways to run them."""

from attention.engines.chosen import ENGINES, chosen
from attention.engines.engine import QKV, AttentionOutput, Engine
from attention.engines.plain import TorchEngine

__all__ = ["ENGINES", "QKV", "AttentionOutput", "Engine", "TorchEngine", "chosen"]
