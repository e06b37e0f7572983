"""Plugin of the counting GPU; loaded by path, with the class that `launches` reads."""

from __future__ import annotations

from benchmarks.gpu.counting_gpu import CountingGpu
from core.api import Entry, hookimpl


@hookimpl
def engine_platforms() -> list[Entry]:
    return [Entry("counting_gpu", CountingGpu, "a fake GPU that counts launches", priority=-100)]
