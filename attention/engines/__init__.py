"""What moves the bytes of keys and values: one set of operations, several ways to run them."""

from attention.engines.engine import QKV, AttentionOutput, Engine
from attention.engines.select import ENGINES, select
from attention.engines.torch_engine import TorchEngine

__all__ = ["ENGINES", "QKV", "AttentionOutput", "Engine", "TorchEngine", "select"]
