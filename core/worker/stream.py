"""In which order the device works, and in whose thread: at once, or beside the host."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Launched(Protocol):
    """Work that was given to a device."""

    def result(self) -> Any:
        """Wait for it; return what its function returned or raise what it raised."""


class Inline:
    """Functions run when they are launched."""

    def launch(self, function: Callable[[], T]) -> Future[T]:
        """Run the function; what it raises is raised by `result`."""
        done: Future[T] = Future()
        try:
            done.set_result(function())
        except Exception as error:  # noqa: BLE001 - raised again by `result`
            done.set_exception(error)
        return done


class Beside:
    """Functions run one after the other in a thread of their own."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="worker")

    def launch(self, function: Callable[[], T]) -> Future[T]:
        """Let the function run behind those before it."""
        return self._thread.submit(function)

    def close(self) -> None:
        """Wait for the thread to end; what has not begun is left."""
        self._thread.shutdown(wait=True, cancel_futures=True)
