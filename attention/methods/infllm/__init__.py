"""InfLLM: its parameters and layers, and the blocks they stand on."""

from attention.methods.infllm.method import InfLLM

__all__ = ["InfLLM"]
