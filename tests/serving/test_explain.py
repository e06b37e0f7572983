"""What became of a request: `/explain`, its memory, and `engine explain`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from patience import PATIENCE_S

from builtin_plugins.routes.explain.ended import REMEMBERED, Ended
from builtin_plugins.routes.explain.routes import ExplainRoutes
from builtin_plugins.routes.names import names_of
from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import AsyncLLM
from core.api import HttpStats, RequestStats
from core.config import EngineConfig


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncLLM]:
    """One place, so that who comes second waits."""
    engine = AsyncLLM(
        "scripted:",
        enable_operator_routes=True,
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
        groups = {"openai": OpenAIRoutes(engine, config), "explain": ExplainRoutes(engine, config)}
        self.app = HttpServer(engine, config, groups).app

    async def ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test", timeout=PATIENCE_S
        ) as client:
            return await client.request(method, path, **request)

    async def complete(self, name: str, **fields: Any) -> httpx.Response:
        body = {"prompt": "one two three four five six", "request_id": name, **fields}
        return await self.ask("POST", "/v1/completions", json=body, headers={"x-request-id": name})

    async def told(self, name: str) -> list[str]:
        reply = await self.ask("GET", "/explain", params={"request_id": name})
        assert reply.status_code == 200, reply.text
        return list(reply.json()["told"])


@pytest.fixture
def api(engine: AsyncLLM) -> Api:
    return Api(engine)


def test_who_waits_is_told_for_what_and_where_the_time_went_afterwards(
    api: Api, engine: AsyncLLM
) -> None:
    async def ask() -> tuple[list[str], list[str], list[str]]:
        first = asyncio.ensure_future(api.complete("first", max_tokens=200))
        while not any("is running" in each for each in await told_of(api, "cmpl-first")):
            await asyncio.sleep(0.001)
        second = asyncio.ensure_future(api.complete("second", max_tokens=1))
        while not (waits := await told_of(api, "cmpl-second")):
            assert not first.done()
            await asyncio.sleep(0.001)
        runs = await api.told("cmpl-first")
        await asyncio.gather(first, second)
        return waits, runs, await api.told("cmpl-second")

    waits, runs, ended = asyncio.run(ask())
    assert "is waiting: it is the next; all 1 places are taken (--max-num-seqs)" in waits[0]
    assert "is running: " in runs[0]
    assert "s in the queue" in ended[0]
    assert "for all requests: " in ended[1]
    assert "scripted " in ended[1]
    assert "has ended (length)" in ended[2]
    assert "queued" in ended[2]
    assert "generating" in ended[2]


async def told_of(api: Api, name: str) -> list[str]:
    reply = await api.ask("GET", "/explain", params={"request_id": name})
    return list(reply.json().get("told", ()))


def test_who_was_refused_is_told_why(api: Api) -> None:
    async def ask() -> list[str]:
        assert (await api.complete("bad", max_tokens=-1)).status_code == 400
        return await api.told("bad")

    (told,) = asyncio.run(ask())
    assert told.startswith("POST /v1/completions ended with status 400: ")
    assert "max_tokens" in told


def test_what_nobody_knows_is_a_404(api: Api) -> None:
    reply = asyncio.run(api.ask("GET", "/explain", params={"request_id": "nobody"}))
    assert reply.status_code == 404
    assert "nothing is known of 'nobody'" in reply.json()["error"]["message"]
    assert asyncio.run(api.ask("GET", "/explain")).json()["error"]["param"] == "request_id"


def test_what_is_remembered_is_bounded() -> None:
    sink = Ended(EngineConfig(options={"enable_operator_routes": True}))
    for number in range(REMEMBERED + 5):
        sink.request(RequestStats("stop", 1, 1, 0.1, 0.1, 0.1, request_id=f"cmpl-{number}-abcd"))
        sink.http(HttpStats("", "GET", 404, 0.1, f"r{number}", "x" * 10_000))
    assert not list(sink.told("cmpl-4"))
    assert len(list(sink.told("cmpl-5"))) == 1
    assert not list(sink.told("r4"))
    assert len("".join(sink.told("r5"))) < 600


def test_nothing_is_remembered_where_nobody_may_ask() -> None:
    sink = Ended(EngineConfig())
    sink.request(RequestStats("stop", 1, 1, 0.1, request_id="cmpl-1-abcd"))
    assert not list(sink.told("cmpl-1"))
    assert not ExplainRoutes(None, EngineConfig()).routes()


def test_ids_are_those_that_answers_show() -> None:
    assert {"cmpl-7", "cmpl-7-0"} <= names_of("cmpl-7-0-ab12#3")
    assert {"cmpl-a#b", "cmpl-a#3"} <= names_of("cmpl-a#b-ab12") | names_of("cmpl-a#3-ab12#1")
    assert "" not in names_of("x")
