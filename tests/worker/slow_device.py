"""A platform whose device computes beside the host: a CPU whose model waits as long as a test says."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from builtin_plugins.platforms.cpu.platform import CpuPlatform
from core.api import Entry, hookimpl
from core.worker.stream import Beside


class Paced(Beside):
    """A device that takes as long as a test says for each step, one right behind the other."""

    def __init__(self, device_s: float) -> None:
        super().__init__()
        self._device_s = device_s
        self._free_s = 0.0

    def launch(self, function: Callable[[], Any]) -> Any:
        """Let the function run behind those before it, and be done when the device would be."""

        launched_s = time.perf_counter()

        def paced() -> Any:
            # A device goes on at once with what was launched meanwhile, however late a thread wakes
            # up for it.
            self._free_s = max(self._free_s, launched_s) + self._device_s
            result = function()
            time.sleep(max(0.0, self._free_s - time.perf_counter()))
            return result

        return super().launch(paced)


class SlowDevice(CpuPlatform):
    """What tests set before they make a worker stands in the class."""

    name = "slow"
    padded: tuple[int, ...] = ()
    wait: Callable[[Any], None] = staticmethod(lambda batch: None)
    device_s = 0.0

    def sizes(self, config: Any) -> tuple[int, ...]:
        """Return what steps are padded to."""
        return self.padded

    def stream(self) -> Beside:
        """Return what launches steps."""
        return Paced(self.device_s)

    def wrap(self, model: Any, sizes: Any) -> Callable[[Any], Any]:
        """Return the model, behind a wait."""
        assert sizes == self.padded

        def forward(batch: Any) -> Any:
            SlowDevice.wait(batch)
            return model(batch)

        return forward


@hookimpl
def engine_platforms() -> list[Entry]:
    return [Entry("slow", SlowDevice, "a slow device", priority=1000)]
