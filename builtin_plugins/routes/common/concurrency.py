"""Runs the coroutines of one request concurrently, up to a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def gather_bounded(
    work: Iterable[Coroutine[Any, Any, T]], limit: int | None = None
) -> list[T]:
    """Return all results in order, or raise the first exception and cancel the rest.

    Up to `limit` coroutines run at once (None: all). `work` is advanced when the next one starts.
    """
    tasks: list[asyncio.Task[T]] = []
    running: set[asyncio.Task[T]] = set()
    try:
        for each in work:
            tasks.append(asyncio.ensure_future(each))
            running.add(tasks[-1])
            await asyncio.sleep(0)  # starting a thousand at once would delay every other stream
            while limit is not None and len(running) >= limit:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.gather(*done)
                done.clear()
        return await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)
        # An exception holds this frame: a task that holds the exception would be a reference cycle.
        tasks.clear()
        running.clear()


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
