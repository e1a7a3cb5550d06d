"""Sparse attention in vLLM's own workers; docs/serving.md says how a server is started."""
