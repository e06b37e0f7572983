"""A device stream: launched work runs in order, and the host waits by events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class DeviceStream:
    """Runs functions at once on the host; `result` waits for their device work."""

    def __init__(self, module: Any) -> None:
        """`module` is torch's for the device, as `torch.cuda`."""
        self._module = module

    def launch(self, function: Callable[[], T]) -> _Launched:
        """Call the function and record an event after its device work; `result` raises its
        exception.
        """
        try:
            value = function()
        except Exception as error:  # noqa: BLE001 - raised again by `result`
            return _Launched(None, error, None)
        event = self._module.Event()
        event.record()
        return _Launched(value, None, event)


class _Launched:
    def __init__(self, value: Any, error: Exception | None, event: Any) -> None:
        self._value = value
        self._error = error
        self._event = event

    def result(self) -> Any:
        """Wait for the device; return what the function returned or raise what it raised."""
        if self._error is not None:
            raise self._error
        self._event.synchronize()
        return self._value
