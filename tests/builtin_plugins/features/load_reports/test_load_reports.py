"""Answers report the load of the engine to requests that ask for it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from builtin_plugins.features.load_reports.reports import LoadReports, LoadSink
from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.servers.http.server import HttpServer
from core.api.telemetry import StepStats
from core.config import EngineConfig
from core.frontend.metrics import SinkHealth
from core.plugin import load_plan, make_plan
from core.testing.echo_engine import EchoEngine
from tests.timeouts import TIMEOUT_S

FORMAT = "endpoint-load-metrics-format"
REPORT = "endpoint-load-metrics"


def answer(form: str, *, key: str = "one", **body: Any) -> httpx.Response:
    """Return the answer of a server that used a quarter of its cache in the last step."""
    engine = EchoEngine()
    engine.registry = load_plan(make_plan(["none", "tool_parsers", "reasoning_parsers"]))
    sink = LoadSink(EngineConfig())
    sink.step(StepStats(0.1, 1, 7, 0.25))
    engine.sinks.entries.append(SinkHealth("load_reports", "builtin", sink))
    config = EngineConfig(options={"api_key": ["one"]})
    groups = [OpenAIRoutes(engine, config), LoadReports(engine, config)]
    transport = httpx.ASGITransport(HttpServer(engine, config, groups).app)
    headers = {"authorization": f"Bearer {key}", **({FORMAT: form} if form else {})}

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test", timeout=TIMEOUT_S
        ) as client:
            return await client.post(
                "/v1/completions", json={"prompt": "one", **body}, headers=headers
            )

    return asyncio.run(send())


@pytest.mark.parametrize("stream", [False, True])
def test_answer_has_the_load_in_the_requested_form(stream: bool) -> None:
    assert answer("TEXT", stream=stream).headers[REPORT] == (
        "TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=7"
    )
    kind, _, body = answer("json", stream=stream).headers[REPORT].partition(" ")
    assert kind == "JSON"
    assert json.loads(body) == {
        "named_metrics": {"kv_cache_usage_perc": 0.25, "num_requests_waiting": 7}
    }


@pytest.mark.parametrize("form", ["", "BIN"])
def test_request_without_a_known_form_gets_no_report(form: str) -> None:
    assert REPORT not in answer(form).headers


def test_refused_request_learns_no_load() -> None:
    refused = answer("TEXT", key="other")
    assert refused.status_code == 401
    assert REPORT not in refused.headers


def test_load_of_several_engines_is_their_mean_usage_and_all_waiting() -> None:
    sink = LoadSink(EngineConfig())
    sink.step(StepStats(0.1, 1, 2, 0.5))
    sink.step(StepStats(0.1, 1, 3, 0.1, engine=1))
    sink.step(StepStats(0.1, 1, 4, 0.2, engine=1))
    assert sink.load() == {"kv_cache_usage_perc": 0.35, "num_requests_waiting": 6}
