"""The worker for CPUs, which makes the layers of its model sparse.

    vllm serve MODEL --worker-cls lil.serving.vllm.sparse.worker.CPUWorker \
      --additional-config '{"lil": {"attention": "quest(budget=1024)"}}'
"""

from __future__ import annotations

# Before all else of the engine's workers: it puts other functions into torch, which they then hold.
from vllm.v1.worker.cpu_worker import CPUWorker as EngineWorker  # isort: skip

from lil.serving.vllm.sparse.backend import SparseBackend
from lil.serving.vllm.sparse.common_worker import SparseWorker


class CPUWorker(SparseWorker, EngineWorker):
    """vLLM's CPU worker, whose model has sparse layers.

    Raises:
        InvalidValue: a policy that cannot be kept, or an engine or a model in which it cannot work.
    """

    backend = SparseBackend
