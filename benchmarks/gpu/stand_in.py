"""A GPU that is none: the GPU platform's path on a CPU, kernels by Triton's interpreter.

For toys, not for measuring.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from builtin_plugins.platforms.cuda.platform import GIB, GpuPlatform
from core.api import Entry, hookimpl


class StandIn(GpuPlatform):
    """Nothing runs beside the host, so nothing is waited for."""

    name = "stand_in"
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
    return [Entry("stand_in", StandIn, "the GPU platform's path on a CPU", priority=-100)]
