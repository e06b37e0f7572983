"""`/explain` and the playground of a server with two engines."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from builtin_plugins.routes.explain.history import RecentRequests
from builtin_plugins.routes.explain.routes import ExplainRoutes
from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.routes.playground.counters import NAME, Totals
from builtin_plugins.routes.playground.routes import PlaygroundRoutes
from builtin_plugins.servers.http.app import EngineApp
from builtin_plugins.servers.http.server import HttpServer
from core import AsyncLLM
from core.api.execution import CallAnswer
from core.api.telemetry import RequestStats, StepStats, TokenStats
from core.config import EngineConfig
from core.config.sections import ParallelConfig
from tests.builtin_plugins.clients.data_parallel.engines import child, running
from tests.builtin_plugins.clients.streams import until
from tests.timeouts import TIMEOUT_S

CONFIG = EngineConfig(
    parallel=ParallelConfig(data_parallel_size=2), options={"enable_operator_routes": True}
)
REPORT = {
    "request_id": "cmpl-1-ab12",
    "state": "running",
    "why": "30 tokens are generated",
    "prompt_tokens": 8,
    "tokens": 38,
    "preemptions": 0,
    "queued_s": 0.0,
    "computed_s": 1.0,
    "displaced_s": 0.0,
    "plugin_s": {},
}


def engine_of(sinks: dict[str, Any], *answers: CallAnswer, **health: Any) -> Any:
    async def call(name: str, data: bytes = b"") -> list[CallAnswer]:
        return list(answers)

    entries = [
        SimpleNamespace(name=name, sink=sink, owner=name, faults=0, quarantined=False)
        for name, sink in sinks.items()
    ]
    registry = SimpleNamespace(plan=SimpleNamespace(plugins=()), shared=lambda name, make: make())
    return SimpleNamespace(
        call=call,
        health=lambda: health,
        sinks=SimpleNamespace(entries=entries),
        registry=registry,
    )


def get(routes: Any, path: str) -> Any:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=EngineApp({"routes": routes}, {}))
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            return await client.get(path)

    return asyncio.run(send()).json()


def test_explain_says_which_engine_computes_a_request_and_where_it_was_before() -> None:
    moved = {**REPORT, "resumed_tokens": 17, "moved_from": [0]}
    answers = [
        CallAnswer(scheduler=b"[]"),
        CallAnswer(engine=1, scheduler=json.dumps([moved]).encode()),
    ]
    found = get(ExplainRoutes(engine_of({}, *answers), CONFIG), "/explain?request_id=cmpl-1")
    assert found["lines"][:3] == [
        "cmpl-1-ab12 in engine 1: moved from engine 0, which died",
        "cmpl-1-ab12 in engine 1: 17 tokens were generated before the engine died",
        "cmpl-1-ab12 in engine 1 is running: 30 tokens are generated",
    ]
    (sequence,) = found["sequences"]
    assert (sequence["engine"], sequence["moved_from"], sequence["resumed_tokens"]) == (1, [0], 17)


def test_explain_says_which_engine_does_not_answer_and_which_ended_a_request() -> None:
    sink = RecentRequests(CONFIG)
    sink.request(RequestStats("stop", 8, 30, 1.0, 0.1, 0.1, request_id="cmpl-1-ab12", engine=1))
    answers = [CallAnswer(scheduler=b"[]"), CallAnswer(engine=1, error="it died", died=True)]
    engine = engine_of({"explain": sink}, *answers)
    lines = get(ExplainRoutes(engine, CONFIG), "/explain?request_id=cmpl-1")["lines"]
    assert lines[0] == "engine 1 does not answer: it died"
    assert lines[1].startswith("cmpl-1-ab12 has ended (stop) in engine 1 after 1.000 s")


def test_one_engine_is_not_named() -> None:
    answer = CallAnswer(scheduler=json.dumps([REPORT]).encode())
    config = EngineConfig(options=CONFIG.options)
    found = get(ExplainRoutes(engine_of({}, answer), config), "/explain?request_id=cmpl-1")
    assert found["lines"][0] == "cmpl-1-ab12 is running: 30 tokens are generated"


def test_playground_has_the_state_of_each_engine() -> None:
    totals = Totals(CONFIG)
    totals.step(StepStats(0.1, 3, 2, 0.5, engine=1))
    totals.tokens(TokenStats(5, engine=1))
    totals.tokens(TokenStats(7))
    blocks = {"used": 3, "cached": 1, "free": 6}
    answers = [
        CallAnswer(error="it died", died=True),
        CallAnswer(engine=1, scheduler=json.dumps({"blocks": blocks, "faults": {}}).encode()),
    ]
    states = [
        {"status": "restarting", "reason": "it died", "restarts": 1},
        {"status": "ready", "reason": "", "restarts": 0},
    ]
    health = {
        "status": "ready",
        "reason": "",
        "heartbeat_age_s": 0.0,
        "restarts": 1,
        "running": 3,
        "waiting": 2,
        "engines": states,
    }
    engine = engine_of({NAME: totals}, *answers, **health)
    engine.served_names = ["model"]
    engine.max_model_len = 512
    engine.sampling_defaults = {}
    found = get(PlaygroundRoutes(engine, CONFIG), "/playground/state")
    counts = {"running": 0, "waiting": 0, "generated_tokens": 7}
    assert found["engines"] == [
        {"rank": 0, **states[0], **counts, "blocks": None},
        {
            "rank": 1,
            **states[1],
            "running": 3,
            "waiting": 2,
            "generated_tokens": 5,
            "blocks": blocks,
        },
    ]
    assert found["blocks"] == blocks
    assert found["totals"]["generated_tokens"] == 12


@pytest.mark.slow
def test_explain_follows_a_request_to_another_engine() -> None:
    async def main(engine: AsyncLLM) -> None:
        groups = [make(engine, engine.config) for make in (OpenAIRoutes, ExplainRoutes)]
        transport = httpx.ASGITransport(HttpServer(engine, engine.config, groups).app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test", timeout=TIMEOUT_S
        ) as client:

            async def explain(number: int) -> dict[str, Any]:
                path = f"/explain?request_id=cmpl-{number}"
                found: dict[str, Any] = (await client.get(path)).json()
                return found

            bodies = [
                {"prompt": f"number {number}", "request_id": str(number), "max_tokens": 400}
                for number in range(4)
            ]
            tasks = [
                asyncio.ensure_future(client.post("/v1/completions", json=body)) for body in bodies
            ]
            await until(lambda: len(engine._client._routed) == 4 and not engine._client._waiting)
            before = {number: await explain(number) for number in range(4)}
            moved = [n for n, each in before.items() if each["sequences"][0]["engine"] == 0]
            assert len(moved) == 2
            child(engine, 0).kill()
            await until(lambda: engine.health()["engines"][0]["status"] != "ready")
            for number in moved:
                while not (now := await explain(number)).get("sequences"):
                    await asyncio.sleep(0.01)
                (sequence,) = now["sequences"]
                assert (sequence["engine"], sequence["moved_from"]) == (1, [0])
                assert sequence["resumed_tokens"] > 0
            assert all(reply.status_code == 200 for reply in await asyncio.gather(*tasks))
            lines = (await explain(moved[0]))["lines"]
            assert any("has ended" in line and ") in engine 1 after" in line for line in lines)

    options = {"dtype": "auto", "scripted_tokens_per_second": 60, "enable_operator_routes": True}
    with running("scripted:", **options) as engine:
        asyncio.run(main(engine))
