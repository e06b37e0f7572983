"""Who times work on a device: events around a recorded graph, a wall clock around an engine; or
nobody, of toys.
"""

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
    """A line of the table. Seconds that are not a number were not measured."""

    name: str
    seconds: float
    limit_s: float
    target: str = ""
    beside: str = ""
    """The same work done by others, in words."""


class Clock(Protocol):
    """Times work."""

    device: str

    def seconds(self, works: Sequence[Work]) -> float:
        """Return the time of one of several works that do the same on other memory, so that no
        cache has it.
        """

    def wall(self, work: Work) -> float:
        """Return the time of work that the host takes part in."""


class DeviceClock:
    """Of a GPU: works are captured in one graph, as the engine's are, and that is replayed."""

    device = "cuda"

    def seconds(self, works: Sequence[Work], repeats: int = 20) -> float:
        """Return the time between events."""
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
        """Return the time until the device is done."""
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - begun


class NoClock:
    """Does the work and times nothing."""

    def __init__(self, device: str) -> None:
        self.device = device

    def seconds(self, works: Sequence[Work]) -> float:
        """Return no number."""
        for work in works:
            work()
        return math.nan

    def wall(self, work: Work) -> float:
        """Return no number."""
        return self.seconds([work])
