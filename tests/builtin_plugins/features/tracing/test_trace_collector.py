"""A server of several processes exports its spans to a collector over OTLP/HTTP."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.served import served

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http", reason="needs OpenTelemetry's exporter"
)

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(ThreadingHTTPServer):
    """Collects the received spans."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taking)
        self.spans: list[Any] = []
        self.services: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/traces"


class Taking(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.server.services |= {
                a.value.string_value
                for a in resource.resource.attributes
                if a.key == "service.name"
            }
            self.server.spans += [span for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def test_request_spans_reach_collector(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    with served("scripted:", "--otlp-traces-endpoint", collector.url) as client:
        stream = client.chat.completions.create(
            model="scripted:",
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            extra_headers={"traceparent": CALLER},
        )
        assert (
            "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
            == "hello"
        )
    spans = {span.name: span for span in collector.spans}  # all of them: the server has ended
    assert set(spans) == {
        "POST /v1/chat/completions",
        "llm_request",
        "engine.queue",
        "engine.compute",
    }
    assert {span.trace_id.hex() for span in spans.values()} == {CALLER[3:35]}
    assert spans["POST /v1/chat/completions"].parent_span_id.hex() == CALLER[36:52]
    assert spans["engine.compute"].parent_span_id == spans["llm_request"].span_id
    (engine_pid,) = (
        a.value.int_value for a in spans["engine.compute"].attributes if a.key == "process.pid"
    )
    assert engine_pid not in (0, os.getpid())
    assert collector.services == {"engine"}
