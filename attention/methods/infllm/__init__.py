"""InfLLM: its parameters, its layers and its blocks."""

from attention.methods.infllm.method import InfLLM

__all__ = ["InfLLM"]
