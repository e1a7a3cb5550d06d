"""Where jobs are decoded: in this process, in others, by vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from experiments.grid import models
from experiments.grid.config import Config
from experiments.sweep.decoder import Prepared, Setup, compile_step, require_supported
from experiments.sweep.executors import processes
from experiments.sweep.executors.contract import Executor, InProcess

__all__ = ["Executor", "begin", "open_executor"]


@contextmanager
def open_executor(
    prepared: Prepared, source: models.ModelSource, steps: float
) -> Iterator[Executor]:
    """Workers with one model; they are gone when the block ends."""
    experiment, shelf = prepared.experiment, prepared.shelf
    config, backends = experiment.config, experiment.backends
    if config.runtime == "vllm":
        from experiments.sweep.executors import on_vllm  # imports torch

        with on_vllm.opened(prepared, source) as engine:
            yield engine
        return
    probes = tuple(detector for detector in experiment.detectors if detector.signals)
    if config.workers == 1:
        loaded = shelf.take(source)
        require_supported(loaded, backends, config.engine)
        compiled = compile_step(loaded, backends[0], config.compile, steps, probes)
        yield InProcess(loaded, {"compile": compiled})
        return
    shelf.clear()  # each worker loads its own
    import torch

    setups, gpus = [], torch.cuda.device_count() if shelf.device == "cuda" else 0
    for at in range(config.workers):
        device = f"cuda:{at % gpus}" if gpus > 1 else shelf.device  # GPUs in turn
        setups.append(Setup(source, config, backends, probes, device, prepared.threads, steps))
    with processes.Processes(setups) as executor:
        yield executor


def begin(config: Config) -> None:
    """Start what workers need and nothing here depends on."""
    if config.runtime == "vllm":
        from experiments.sweep.executors import on_vllm

        on_vllm.require_decodable(config)
        on_vllm.require_installed()
    if config.workers > 1:
        processes.prepare()
