"""A few threads for work that takes more than a moment, given out in turns among those who want
them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from core.text.places import Places
from core.text.windows import Stopped

T = TypeVar("T")


class Turns:
    """Runs so many pieces of work at once; of those that wait, each client's oldest in turn.

    What nobody awaits any more never starts, and is told so where it has.
    """

    def __init__(self, name: str, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, name)
        self._places = Places(num_threads)

    async def run(self, work: Callable[[Stopped], T], client: str = "") -> T:
        """Return what `work` returns; it is given what to ask whether anybody still waits."""
        await self._places.enter(client)
        loop = asyncio.get_running_loop()
        left = threading.Event()

        def ended(job: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop has ended, and with it whoever waits
                loop.call_soon_threadsafe(self._places.leave)

        try:
            job = self._threads.submit(work, left.is_set)
        except BaseException:  # no thread is to be had at the moment
            self._places.leave()
            raise
        job.add_done_callback(ended)
        try:
            return await asyncio.wrap_future(job)
        finally:
            left.set()

    @property
    def num_waiting(self) -> int:
        """How many wait for a thread."""
        return self._places.num_waiting
