"""Spans of requests: parents, attributes, and requests without a span."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from builtin_plugins.features.tracing.serving import TracedRequests, TraceSink
from builtin_plugins.features.tracing.settings import Detail, check, speaks_grpc
from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import AsyncLLM, SamplingParams
from core.config import EngineConfig
from core.errors import ConfigError, InvalidRequest
from core.frontend.startup import load_from_kwargs
from tests.timeouts import TIMEOUT_S

pytest.importorskip("opentelemetry.sdk", reason="traces need OpenTelemetry's library")

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from builtin_plugins.features.tracing.tracer import Tracer

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = CALLER[:-1] + "0"


class TracedServer:
    """A server application, with an engine that stores its spans in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self._tracer = Tracer(self.exporter)
        config, registry = load_from_kwargs(
            {
                "model": "scripted:",
                "otlp_traces_endpoint": "http://127.0.0.1:4318/v1/traces",
                "collect_detailed_traces": ["model,worker"],
                "disable_frontend_multiprocessing": True,
                "max_model_len": 256,
                "kv_cache_memory_bytes": 1 << 22,
                "num_threads": 1,
                "log_level": "error",
            }
        )
        registry.shared("tracer", lambda: self._tracer)
        self.engine = AsyncLLM.from_config(config, registry)
        groups = [OpenAIRoutes(self.engine, config), TracedRequests(self.engine, config)]
        self.app = HttpServer(self.engine, config, groups).app

    def spans(self) -> dict[str, Any]:
        """Return new spans by name; several of one name as a list."""
        self._tracer.flush()
        found: dict[str, Any] = {}
        for span in self.exporter.get_finished_spans():
            found[span.name] = (
                span if span.name not in found else [*_listed(found[span.name]), span]
            )
        self.exporter.clear()
        return found

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://test", timeout=TIMEOUT_S
            ) as client:
                return await client.post(path, json=body, headers=headers)

        return asyncio.run(send())

    def generate(self, prompt: str, **keywords: Any) -> None:
        async def run() -> None:
            async for _ in self.engine.generate(
                prompt, SamplingParams(max_tokens=50), "id", **keywords
            ):
                pass

        asyncio.run(run())


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@pytest.fixture(scope="module")
def module_traced() -> Iterator[TracedServer]:
    traced = TracedServer()
    yield traced
    traced.engine.shutdown()


@pytest.fixture
def traced(module_traced: TracedServer) -> TracedServer:
    module_traced.spans()
    return module_traced


def test_request_is_one_trace_from_client_to_engine(traced: TracedServer) -> None:
    body = {"prompt": "hello", "max_tokens": 20, "temperature": 0.5, "top_p": 0.9}
    assert (
        traced.post("/v1/completions", body, traceparent=CALLER, tracestate="a=1").status_code
        == 200
    )
    spans = traced.spans()
    assert set(spans) == {"POST /v1/completions", "llm_request", "engine.queue", "engine.compute"}
    http, request, queue, compute = (
        spans[name]
        for name in ("POST /v1/completions", "llm_request", "engine.queue", "engine.compute")
    )
    assert {span.context.trace_id for span in spans.values()} == {int(CALLER[3:35], 16)}
    assert all(span.context.trace_state.get("a") == "1" for span in spans.values())
    assert http.parent.span_id == int(CALLER[36:52], 16)
    assert request.parent.span_id == http.context.span_id
    assert queue.parent.span_id == compute.parent.span_id == request.context.span_id
    assert http.kind is SpanKind.SERVER
    assert http.attributes["http.route"] == "/v1/completions"
    assert http.attributes["http.response.status_code"] == 200
    assert (
        http.start_time
        <= request.start_time
        <= queue.start_time
        <= queue.end_time
        == compute.start_time
    )
    assert compute.end_time <= request.end_time <= http.end_time


def test_span_attributes_match_answer(traced: TracedServer) -> None:
    body = {"prompt": "hello", "max_tokens": 20, "temperature": 0.5, "top_p": 0.9, "n": 2}
    usage = traced.post("/v1/completions", body).json()["usage"]
    spans = traced.spans()
    found = spans["llm_request"].attributes
    assert found["gen_ai.usage.prompt_tokens"] == usage["prompt_tokens"]
    assert found["gen_ai.usage.completion_tokens"] == usage["completion_tokens"]
    params = {
        name: found[f"gen_ai.request.{name}"]
        for name in ("n", "max_tokens", "temperature", "top_p")
    }
    assert params == {"n": 2, "max_tokens": 20, "temperature": 0.5, "top_p": 0.9}
    assert found["gen_ai.response.model"] == "scripted:"
    assert list(found["gen_ai.response.finish_reasons"]) == ["stop"]
    latency = {
        name.removeprefix("gen_ai.latency."): value
        for name, value in found.items()
        if ".latency." in name
    }
    assert latency["time_in_queue"] + latency["time_in_model_prefill"] == pytest.approx(
        latency["time_to_first_token"]
    )
    assert latency["time_in_model_prefill"] + latency["time_in_model_decode"] == pytest.approx(
        latency["time_in_model_inference"]
    )
    assert latency["e2e"] == pytest.approx(
        latency["time_in_queue"] + latency["time_in_model_inference"]
    )
    assert len(spans["engine.compute"]) == 2  # one for each sequence
    for compute in spans["engine.compute"]:
        forward, execute = (
            compute.attributes[f"gen_ai.latency.time_in_model_{name}"]
            for name in ("forward", "execute")
        )
        assert 0 < forward < execute < latency["time_in_model_inference"]


def test_trace_headers_set_parent_span(traced: TracedServer) -> None:
    traced.generate("hello", trace_headers={"Traceparent": CALLER, "x-other": "not read"})
    assert traced.spans()["llm_request"].parent.span_id == int(CALLER[36:52], 16)
    with pytest.raises(InvalidRequest, match="trace_headers"):
        traced.generate("hello", trace_headers={"traceparent": 5})


def test_request_without_parent_starts_trace(traced: TracedServer) -> None:
    traced.generate("hello")
    assert traced.spans()["llm_request"].parent is None


@pytest.mark.parametrize(
    "header", ["", "nonsense", CALLER[:-3], "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "é" * 200]
)
def test_invalid_trace_header_is_ignored(traced: TracedServer, header: str) -> None:
    body = {"prompt": "hello", "max_tokens": 2}
    reply = traced.post(
        "/v1/completions", body, traceparent=header.encode().decode("latin-1").encode("latin-1")
    )  # type: ignore[arg-type]
    assert reply.status_code == 200
    assert traced.spans()["POST /v1/completions"].parent is None


def test_unsampled_parent_makes_no_span(traced: TracedServer) -> None:
    traced.post("/v1/completions", {"prompt": "hello", "max_tokens": 2}, traceparent=UNSAMPLED)
    assert traced.spans() == {}


def test_refused_and_aborted_requests_have_error_spans(traced: TracedServer) -> None:
    traced.post("/v1/completions", {"prompt": "hello", "max_tokens": -2})
    assert traced.spans()["POST /v1/completions"].attributes["http.response.status_code"] == 400

    async def leave() -> None:
        run = traced.engine.generate("x" * 200, SamplingParams(max_tokens=50), "left")
        async for _ in run:
            break
        await run.aclose()

    asyncio.run(leave())
    assert list(traced.spans()["llm_request"].attributes["gen_ai.response.finish_reasons"]) == [
        "abort"
    ]


def test_request_without_answer_has_error_span(traced: TracedServer) -> None:
    from builtin_plugins.features.tracing.http_spans import HttpSpans

    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("at once")

    async def call() -> None:
        scope = {"type": "http", "method": "POST", "headers": [], "state": {}}
        with contextlib.suppress(RuntimeError):
            await HttpSpans(fails, traced._tracer)(scope, None, None)  # type: ignore[arg-type]

    asyncio.run(call())
    assert traced.spans()["POST"].status.status_code is StatusCode.ERROR


@pytest.mark.parametrize(
    "endpoint", ["localhost:4317", "ftp://a/b", "http://", "http://a:x/", "http://a:0"]
)
def test_invalid_endpoint_is_config_error(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="--otlp-traces-endpoint"):
        TraceSink(EngineConfig(options={"otlp_traces_endpoint": endpoint}))


def test_missing_library_error_names_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtin_plugins.features.tracing.settings.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match="pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
    ):
        check("http://localhost:4318/v1/traces")


@pytest.mark.parametrize(
    ("endpoint", "grpc"),
    [
        ("grpc://a:1", True),
        ("http://a:4317", True),
        ("http://a:4318/v1/traces", False),
        ("https://a/x", False),
    ],
)
def test_scheme_and_port_select_transport(endpoint: str, grpc: bool) -> None:
    assert speaks_grpc(endpoint) is grpc


def test_detail_option_accepts_lists_and_commas() -> None:
    def read(*values: str) -> Detail:
        return Detail.of(EngineConfig(options={"collect_detailed_traces": list(values)}))

    assert read("model") == Detail(model=True)
    assert (
        read("model,worker")
        == read("all")
        == read("model", "worker")
        == Detail(model=True, worker=True)
    )
    assert not read()
    with pytest.raises(ConfigError, match="expected all, model, worker"):
        read("models")
