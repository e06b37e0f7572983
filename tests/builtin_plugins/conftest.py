"""In-process server application over an engine without a model, and its client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from builtin_plugins.routes.anthropic.routes import AnthropicRoutes
from builtin_plugins.routes.cohere.routes import CohereRoutes
from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.routes.probes.routes import ProbeRoutes
from builtin_plugins.routes.responses.routes import ResponsesRoutes
from builtin_plugins.routes.tokens.tokenize import TokenizeRoutes
from builtin_plugins.servers.http.server import HttpServer
from core.config import EngineConfig
from core.plugin import load_plan, make_plan
from core.testing.echo_engine import EchoEngine

GROUPS = (OpenAIRoutes, ResponsesRoutes, AnthropicRoutes, CohereRoutes, TokenizeRoutes, ProbeRoutes)
PLAN = make_plan(["none", "tool_parsers", "reasoning_parsers"])


class Api:
    """Calls one application without a socket."""

    def __init__(self, **options: Any) -> None:
        self.config = EngineConfig(options=options)
        self.engine = EchoEngine(self.config)
        self.engine.registry = load_plan(PLAN)
        groups = [make(self.engine, self.config) for make in GROUPS]
        self.server = HttpServer(self.engine, self.config, groups)

    def call(self, method: str, path: str, **request: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.server.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, **request)

        return asyncio.run(send())

    def get(self, path: str, **request: Any) -> httpx.Response:
        return self.call("GET", path, **request)

    def complete(self, prompt: Any = "hello", **fields: Any) -> httpx.Response:
        return self.call("POST", "/v1/completions", json={"prompt": prompt, **fields})

    def chat(self, content: str = "hello", **fields: Any) -> httpx.Response:
        messages = fields.pop("messages", [{"role": "user", "content": content}])
        return self.call("POST", "/v1/chat/completions", json={"messages": messages, **fields})


def events(response: httpx.Response) -> list[Any]:
    """Return the objects of an event stream, without its end mark."""
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks[-1] == ""
    assert blocks[-2] == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


@pytest.fixture
def make_api() -> Callable[..., Api]:
    return Api


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def read_events() -> Callable[[httpx.Response], list[Any]]:
    return events
