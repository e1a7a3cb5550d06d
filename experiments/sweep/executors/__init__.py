"""Where jobs are decoded: in this process, in others, on a Ray cluster, by vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from experiments.grid import models
from experiments.grid.config import Config
from experiments.grid.plan import build_backends
from experiments.sweep.decoder import Setup, compile_step, require_supported
from experiments.sweep.executors import on_ray, processes
from experiments.sweep.executors.contract import Executor, InProcess, Open, Tell
from experiments.sweep.missing_runs import Preparation

__all__ = ["Executor", "Open", "Tell", "begin", "open_executor"]


@contextmanager
def open_executor(prepared: Preparation, source: models.ModelSource) -> Iterator[Executor]:
    """Workers with one model; they are gone when the block ends.

    Raises:
        InvalidValue: a model that does not load or that a backend does not work with.
    """
    config, shelf = prepared.config, prepared.shelf
    if config.runtime == "vllm":
        from experiments.sweep.executors import on_vllm  # torch comes with it

        with on_vllm.opened(prepared, source) as engine:
            yield engine
        return
    backends = tuple(build_backends(config))
    probes = tuple(detector for detector in prepared.detectors if detector.signals)
    if config.executor == "ray":
        shelf.clear()
        # A node has what devices it has; only whether there is a GPU for a worker is known there.
        setup = Setup(source, backends, config.engine, config.dtype, config.device)
        setup = replace(setup, device_map=config.device_map, threads=config.threads or 1)
        setup = replace(setup, compile=config.compile, steps=prepared.steps, probes=probes)
        with on_ray.opened(config, setup) as cluster:
            yield cluster
        return
    if config.workers == 1:
        loaded = shelf.take(source)
        require_supported(loaded, backends, config.engine)
        what = compile_step(loaded, backends[0], config.compile, prepared.steps, probes)
        yield InProcess(loaded, {"compile": what})
        return
    shelf.clear()  # each worker has one of its own
    setups = [
        Setup(
            source,
            backends,
            config.engine,
            config.dtype,
            device,
            config.device_map,
            prepared.threads,
            config.compile,
            prepared.steps,
            probes,
        )
        for device in devices(shelf.device, models.gpus(), config.workers)
    ]
    with processes.Processes(setups) as executor:
        yield executor


def begin(config: Config) -> None:
    """Begin with what workers need and nothing here depends on.

    Raises:
        InvalidValue: the executor or the runtime is not installed, or what is asked for is nothing
            that the runtime can do.
    """
    if config.runtime == "vllm":
        from experiments.sweep.executors import vllm_limits

        vllm_limits.require_able(config)
        vllm_limits.require_installed()
    if config.executor == "ray":
        on_ray.require()
    if config.executor == "local" and config.workers > 1:
        processes.prepare()


def devices(device: str, gpus: int, workers: int) -> list[str]:
    """Where each worker has its model: GPUs in turn, unless one is named.

    Args:
        device: as `models.resolve_device` gave it.
        gpus: that are here.
        workers: how many.
    """
    if device != "cuda" or gpus < 2:
        return [device] * workers
    return [f"cuda:{at % gpus}" for at in range(workers)]
