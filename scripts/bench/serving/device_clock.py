"""How long a device and its host take, by events, by graphs and by the wall."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch


class Clock:
    """Times on a device.

    Args:
        device: "cuda", or "cpu", which has no events and no graphs.
    """

    def __init__(self, device: str) -> None:
        self.device, self.on_gpu = device, device == "cuda"
        size = 2**20
        if self.on_gpu:
            properties = torch.cuda.get_device_properties(torch.cuda.current_device())
            size = 4 * max(getattr(properties, "L2_cache_size", 0), 2**26)
        self.other = torch.zeros(size // 4, device=device)
        self.cycles = 0.0
        self.refused: dict[str, str] = {}
        if self.on_gpu:
            self._sleep(10**6)
            self.cycles = 10**7 / self._events(lambda: self._sleep(10**7))

    def _sleep(self, cycles: float) -> None:
        torch.cuda._sleep(int(cycles))  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Until the device has done everything."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def _events(self, run: Callable[[], object]) -> float:
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    def cold(self, run: Callable[[], object], lead_ms: float) -> float:
        """Milliseconds on the device.

        Args:
            run: launches.
            lead_ms: the device is kept busy before, while the host launches.
        """
        # Read, so that nothing is left to be written while a step is timed.
        self.other.sum()
        if not self.on_gpu:
            return 1000 * self.launched(run)
        self._sleep(lead_ms * self.cycles)
        return self._events(run)

    def launched(self, run: Callable[[], object]) -> float:
        """Seconds until a call returns."""
        begin = perf_counter()
        run()
        return perf_counter() - begin

    def finished(self, run: Callable[[], object], steps: int = 1) -> float:
        """Seconds of a call among several, until the device has done them."""
        self.wait()
        begin = perf_counter()
        for _ in range(steps):
            run()
        self.wait()
        return (perf_counter() - begin) / steps

    def captured(
        self, name: str, run: Callable[[], object]
    ) -> tuple[Callable[[], object] | None, str]:
        """A call as a graph that is replayed, or None and the reason.

        Args:
            name: of what is not tried again where it failed.
            run: launches.
        """
        if not self.on_gpu:
            return None, "no CUDA device"
        if name in self.refused:
            return None, self.refused[name]
        try:
            aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(3):
                    run()
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            graph.replay()
            torch.cuda.synchronize()
        except Exception as error:
            self.refused[name] = f"{type(error).__name__}: {error}"[:500]
            return None, self.refused[name]
        return graph.replay, ""

    def bandwidth(self) -> float:
        """Bytes a second that a copy reads and writes, the best of some."""
        size = 2**30 if self.on_gpu else 2**22
        one, two = (torch.zeros(size // 4, device=self.device) for _ in range(2))
        return 2 * size / min(self.cold(lambda: two.copy_(one), 0.1) for _ in range(9)) * 1000
