"""Device streams: run device work at once, or in a thread next to
the host.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Launched(Protocol):
    """Device work in flight."""

    def result(self) -> Any:
        """Wait for the work; return its function's result or raise its
        exception.
        """


class SyncStream:
    """Runs each function when it is launched."""

    def launch(self, function: Callable[[], T]) -> Future[T]:
        """Run the function; `result` raises its exception."""
        done: Future[T] = Future()
        try:
            done.set_result(function())
        except Exception as error:  # noqa: BLE001 - raised again by `result`
            done.set_exception(error)
        return done


class ThreadStream:
    """Runs functions in launch order in a thread of its own."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="worker")

    def launch(self, function: Callable[[], T]) -> Future[T]:
        """Queue the function after those launched before."""
        return self._thread.submit(function)

    def close(self) -> None:
        """Stop the thread after its current function; queued functions do not
        run.
        """
        self._thread.shutdown(wait=True, cancel_futures=True)
