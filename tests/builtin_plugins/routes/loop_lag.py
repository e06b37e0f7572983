"""Measures how much CPU time an event loop spends in one iteration, in which nothing else runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any


class MeasuredLoop(asyncio.SelectorEventLoop):
    """An event loop that records the longest of its iterations.

    CPU time of its thread does not depend on what else the machine does.
    """

    longest_s = 0.0
    slowest = ""
    """The callback with which the longest iteration began."""

    def _run_once(self) -> None:
        ready = self._ready  # type: ignore[attr-defined]
        first = str(ready[0])[:300] if ready and self.get_debug() else ""
        start_s = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        spent_s = time.thread_time() - start_s
        if spent_s > self.longest_s:
            self.longest_s = spent_s
            self.slowest = first

    def restart(self) -> None:
        """Forget the iterations so far."""
        self.longest_s = 0.0


async def send(
    app: Any, method: str, path: str, body: bytes, headers: dict[str, str] | None = None
) -> tuple[int, int]:
    """Send a request in parts, as a server does; return its status and the size of the answer."""
    parts = [body[i : i + 65_536] for i in range(0, len(body), 65_536)] or [b""]
    messages = [
        {"type": "http.request", "body": part, "more_body": i + 1 < len(parts)}
        for i, part in enumerate(parts)
    ]
    found = [0, 0]
    given = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        **(headers or {}),
    }
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 1),
    }

    async def receive() -> Any:
        if not messages:
            await asyncio.Event().wait()
        await asyncio.sleep(0)  # parts come in iterations of their own
        return messages.pop(0)

    async def receive_answer(message: Any) -> None:
        if message["type"] == "http.response.start":
            found[0] = message["status"]
        found[1] += len(message.get("body", b""))

    await app(scope, receive, receive_answer)
    return found[0], found[1]


def run_measured(work: Callable[[MeasuredLoop], Awaitable[None]]) -> None:
    """Run work in a measured loop."""
    loop = MeasuredLoop()
    try:
        loop.run_until_complete(work(loop))
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
