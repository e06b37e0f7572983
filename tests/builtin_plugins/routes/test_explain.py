"""`/explain`, its memory, and `engine explain`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from builtin_plugins.routes.anthropic.routes import AnthropicRoutes
from builtin_plugins.routes.cohere.routes import CohereRoutes
from builtin_plugins.routes.common.request_ids import id_aliases
from builtin_plugins.routes.explain.history import MAX_REQUESTS, RecentRequests
from builtin_plugins.routes.explain.routes import ExplainRoutes
from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.routes.responses.routes import ResponsesRoutes
from builtin_plugins.routes.tokens.generate import TokenRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import AsyncLLM
from core.api.telemetry import HttpStats, RequestStats
from core.config import EngineConfig
from tests.timeouts import TIMEOUT_S


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncLLM]:
    """An engine with one row, so the second request waits."""
    engine = AsyncLLM(
        "scripted:",
        enable_operator_routes=True,
        tokens_only=True,
        disable_frontend_multiprocessing=True,
        scripted_tokens_per_second=40,
        max_model_len=512,
        max_num_seqs=1,
        num_threads=1,
        log_level="error",
    )
    try:
        yield engine
    finally:
        engine.shutdown()


class Api:
    def __init__(self, engine: AsyncLLM) -> None:
        config = engine.config
        makers = {
            "openai": OpenAIRoutes,
            "responses": ResponsesRoutes,
            "anthropic": AnthropicRoutes,
            "cohere": CohereRoutes,
            "tokens": TokenRoutes,
            "explain": ExplainRoutes,
        }
        groups = {name: make(engine, config) for name, make in makers.items()}
        self.app = HttpServer(engine, config, groups).app

    async def send(self, method: str, path: str, **request: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test", timeout=TIMEOUT_S
        ) as client:
            return await client.request(method, path, **request)

    async def complete(self, name: str, **fields: Any) -> httpx.Response:
        body = {"prompt": "one two three four five six", "request_id": name, **fields}
        return await self.send("POST", "/v1/completions", json=body, headers={"x-request-id": name})

    async def sentences(self, name: str) -> list[str]:
        reply = await self.send("GET", "/explain", params={"request_id": name})
        assert reply.status_code == 200, reply.text
        return list(reply.json()["lines"])


@pytest.fixture
def api(engine: AsyncLLM) -> Api:
    return Api(engine)


def test_explain_reports_waiting_reason_and_times(api: Api, engine: AsyncLLM) -> None:
    async def send() -> tuple[list[str], list[str], list[str]]:
        first = asyncio.ensure_future(api.complete("first", max_tokens=200))
        while not any("is running" in each for each in await sentences_of(api, "cmpl-first")):
            await asyncio.sleep(0.001)
        second = asyncio.ensure_future(api.complete("second", max_tokens=1))
        while not (waits := await sentences_of(api, "cmpl-second")):
            assert not first.done()
            await asyncio.sleep(0.001)
        runs = await api.sentences("cmpl-first")
        await asyncio.gather(first, second)
        return waits, runs, await api.sentences("cmpl-second")

    waits, runs, ended = asyncio.run(send())
    assert (
        "is waiting: it is the next; all 1 rows of the batch are in use (--max-num-seqs)"
        in waits[0]
    )
    assert "is running: " in runs[0]
    assert "s in the queue" in ended[0]
    assert "for all requests: " in ended[1]
    assert "scripted " in ended[1]
    assert "has ended (length)" in ended[2]
    assert "queued" in ended[2]
    assert "generating" in ended[2]


async def sentences_of(api: Api, name: str) -> list[str]:
    reply = await api.send("GET", "/explain", params={"request_id": name})
    return list(reply.json().get("lines", ()))


def test_explain_reports_refusal_reason(api: Api) -> None:
    async def send() -> list[str]:
        assert (await api.complete("bad", max_tokens=-1)).status_code == 400
        return await api.sentences("bad")

    (sentences,) = asyncio.run(send())
    assert sentences.startswith("POST /v1/completions ended with status 400: ")
    assert "max_tokens" in sentences


def test_explain_unknown_request_returns_404(api: Api) -> None:
    reply = asyncio.run(api.send("GET", "/explain", params={"request_id": "unknown"}))
    assert reply.status_code == 404
    assert "request 'unknown' is unknown" in reply.json()["error"]["message"]
    assert asyncio.run(api.send("GET", "/explain")).json()["error"]["param"] == "request_id"


def test_remembered_requests_are_bounded() -> None:
    sink = RecentRequests(EngineConfig(options={"enable_operator_routes": True}))
    for number in range(MAX_REQUESTS + 5):
        sink.request(RequestStats("stop", 1, 1, 0.1, 0.1, 0.1, request_id=f"cmpl-{number}-abcd"))
        sink.http(HttpStats("", "GET", 404, 0.1, f"r{number}", "x" * 10_000))
    assert not list(sink.sentences("cmpl-4"))
    assert len(list(sink.sentences("cmpl-5"))) == 1
    assert not list(sink.sentences("r4"))
    assert len("".join(sink.sentences("r5"))) < 600


def test_nothing_is_remembered_without_operator_routes() -> None:
    sink = RecentRequests(EngineConfig())
    sink.request(RequestStats("stop", 1, 1, 0.1, request_id="cmpl-1-abcd"))
    assert not list(sink.sentences("cmpl-1"))
    assert not ExplainRoutes(None, EngineConfig()).routes()


def test_id_aliases_include_answer_ids() -> None:
    assert {"cmpl-7", "cmpl-7-0"} <= id_aliases("cmpl-7-0-ab12#3")
    assert {"cmpl-a#b", "cmpl-a#3"} <= id_aliases("cmpl-a#b-ab12") | id_aliases("cmpl-a#3-ab12#1")
    assert "" not in id_aliases("x")


BODIES = {
    "/v1/completions": {"prompt": "one", "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "one"}], "max_tokens": 1},
    "/v1/responses": {"input": "one", "max_output_tokens": 1},
    "/v1/messages": {"messages": [{"role": "user", "content": "one"}], "max_tokens": 1},
    "/v2/chat": {"messages": [{"role": "user", "content": "one"}], "max_tokens": 1},
    "/inference/v1/generate": {"token_ids": [65], "sampling_params": {"max_tokens": 1}},
}


@pytest.mark.parametrize("path", BODIES)
def test_request_is_explained_by_the_id_that_the_client_gave(api: Api, path: str) -> None:
    name = f"mine{path.replace('/', '.')}"

    async def send() -> list[str]:
        headers = {"x-request-id": name}
        reply = await api.send("POST", path, json=BODIES[path], headers=headers)
        assert reply.status_code == 200, reply.text
        return await api.sentences(name)

    assert any("has ended" in each for each in asyncio.run(send()))
