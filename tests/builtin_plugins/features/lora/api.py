"""An HTTP server over one engine, called in the test process."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.routes.operator.lora import AdapterRoutes
from builtin_plugins.routes.probes.routes import ProbeRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import AsyncLLM

CHAT = {
    "messages": [{"role": "user", "content": "Say hello hello hello."}],
    "max_tokens": 12,
    "temperature": 0,
}


class Api:
    """A server over one engine, called in this process."""

    def __init__(self, engine: AsyncLLM) -> None:
        self.engine = engine
        groups = {
            kind.__name__: kind(engine, engine.config)
            for kind in (OpenAIRoutes, AdapterRoutes, ProbeRoutes)
        }
        self._app = HttpServer(engine, engine.config, groups).app
        self._loop = asyncio.new_event_loop()

    def close(self) -> None:
        self._loop.close()
        self.engine.shutdown()

    def together(self, *covered: Any) -> list[httpx.Response]:
        async def gather() -> list[httpx.Response]:
            return await asyncio.gather(*covered)

        return self._loop.run_until_complete(gather())

    async def request(self, path: str, method: str = "POST", **body: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self._app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test", timeout=600
        ) as client:
            return await client.request(method, path, json=body or None)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.together(self.request(path, **body))[0]

    def models(self) -> dict[str, Any]:
        (reply,) = self.together(self.request("/v1/models", "GET"))
        return {card["id"]: card for card in reply.json()["data"]}

    def chat(self, model: str, **more: Any) -> str:
        reply = self.post("/v1/chat/completions", model=model, **CHAT | more)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["choices"][0]["message"]["content"])
