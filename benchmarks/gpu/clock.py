"""Clocks for device work: device events, wall clock, or none for tiny shapes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Row:
    """One table line. Unmeasured seconds are NaN."""

    name: str
    seconds: float
    limit_s: float
    target: str = ""
    comparison: str = ""
    """Comparison with other implementations."""


class Clock(Protocol):
    """Times work."""

    device: str

    def seconds(self, works: Sequence[Work]) -> float:
        """Return the mean time of equal works on different memory, so that caches do not help."""

    def wall(self, work: Work) -> float:
        """Return the wall time of work that involves the host."""


class DeviceClock:
    """GPU clock: captures work in a CUDA graph and replays it."""

    device = "cuda"

    def seconds(self, works: Sequence[Work], repeats: int = 20) -> float:
        """Return the time between device events."""
        for work in works:
            work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for work in works:
                work()
        for _ in range(3):
            graph.replay()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000 / repeats / len(works)

    def wall(self, work: Work) -> float:
        """Return the time until the device is idle."""
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - begun


class NoClock:
    """Runs the work without timing."""

    def __init__(self, device: str) -> None:
        self.device = device

    def seconds(self, works: Sequence[Work]) -> float:
        """Return NaN."""
        for work in works:
            work()
        return math.nan

    def wall(self, work: Work) -> float:
        """Return NaN."""
        return self.seconds([work])
