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
            task = asyncio.ensure_future(each)
            tasks.append(task)
            running.add(task)
            await asyncio.sleep(0)  # starting a thousand at once would delay every other stream
            while limit is not None and len(running) >= limit:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for ended in done:
                    ended.result()
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
