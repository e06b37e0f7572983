"""Requests to an application in this process, without a socket."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from tests.timeouts import TIMEOUT_S


def send_to(app: Any, method: str, path: str, **request: Any) -> httpx.Response:
    """Return the answer to one request, in an event loop of its own."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://engine", timeout=TIMEOUT_S
        ) as client:
            return await client.request(method, path, **request)

    return asyncio.run(send())
