"""Fake GPU: the GPU platform's path on a CPU, with Triton's interpreter.

For smoke tests, not for measurements.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from builtin_plugins.platforms.cuda.platform import GIB, GpuPlatform
from core.api import Entry, hookimpl


class FakeGpu(GpuPlatform):
    """Fake device stream: all work is synchronous."""

    name = "fake_gpu"
    device = "cpu"

    @property
    def _module(self) -> Any:
        event = SimpleNamespace(record=lambda: None, synchronize=lambda: None)
        return SimpleNamespace(
            device_count=lambda: 1,
            mem_get_info=lambda: (64 * GIB, 64 * GIB),
            empty_cache=lambda: None,
            Event=lambda: event,
        )


@hookimpl
def engine_platforms() -> list[Entry]:
    return [Entry("fake_gpu", FakeGpu, "the GPU platform's path on a CPU", priority=-100)]
