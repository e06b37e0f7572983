"""Several pieces of work of one request, as one: all of them done, or all of them over."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def gathered(work: Iterable[Coroutine[Any, Any, T]], most: int | None = None) -> list[T]:
    """Return every result, in order, or raise the first exception with the others cancelled.

    `work` is asked for the next piece when that is to begin; at most `most` are under way together,
    or all.
    """
    tasks: list[asyncio.Task[T]] = []
    under_way: set[asyncio.Task[T]] = set()
    try:
        for each in work:
            task = asyncio.ensure_future(each)
            tasks.append(task)
            under_way.add(task)
            await asyncio.sleep(0)  # a thousand that begin at once would hold up every other stream
            while most is not None and len(under_way) >= most:
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for ended in done:
                    ended.result()
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
