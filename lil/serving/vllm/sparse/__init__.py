"""Sparse attention at decode time inside vLLM, see docs/serving.md.

    vllm serve MODEL --worker-cls lil.serving.vllm.sparse.worker.CPUWorker \
      --additional-config '{"lil": {"attention": "quest(budget=1024)"}}'

On a GPU the worker is `lil.serving.vllm.sparse.gpu_worker.GPUWorker`. Importing this changes
nothing; the worker does, in its own process and for its own model.
"""
