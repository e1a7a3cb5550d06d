"""Penalties and detectors inside the engines people serve with.

`lil.serving.vllm` and `lil.serving.sglang` are given to an engine by name. Neither is imported by
anything else here, and no entry point declares them: an engine that fails to import one of those
does not start at all.
"""
