"""A platform with an asynchronous device: a CPU with a delay that the test sets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from builtin_plugins.platforms.cpu.platform import CpuPlatform
from core.api import Entry, hookimpl
from core.worker.stream import ThreadStream


class Paced(ThreadStream):
    """A device that takes a fixed time per step, without gaps between steps."""

    def __init__(self, device_s: float) -> None:
        super().__init__()
        self._device_s = device_s
        self._free_s = 0.0

    def launch(self, function: Callable[[], Any]) -> Any:
        """Queue the function; it ends when the device would."""

        launched_s = time.perf_counter()

        def paced() -> Any:
            # A device starts queued work at once, however late this thread wakes up.
            self._free_s = max(self._free_s, launched_s) + self._device_s
            result = function()
            time.sleep(max(0.0, self._free_s - time.perf_counter()))
            return result

        return super().launch(paced)


class SlowDevice(CpuPlatform):
    """Tests set class attributes before they create a worker."""

    name = "slow"
    padded: tuple[int, ...] = ()
    wait: Callable[[Any], None] = staticmethod(lambda batch: None)
    device_s = 0.0

    def sizes(self, config: Any) -> tuple[int, ...]:
        """Return the padded step sizes."""
        return self.padded

    def stream(self) -> ThreadStream:
        """Return the device stream."""
        return Paced(self.device_s)

    def wrap(self, model: Any, sizes: Any) -> Callable[[Any], Any]:
        """Return the model with a wait before each call."""
        assert sizes == self.padded

        def forward(batch: Any) -> Any:
            SlowDevice.wait(batch)
            return model(batch)

        return forward


@hookimpl
def engine_platforms() -> list[Entry]:
    return [Entry("slow", SlowDevice, "a slow device", priority=1000)]
