"""Exports finished spans to an OpenTelemetry collector, in the background.

A span's context is made when the work starts, because other parts need it. The span itself is made
when the work has ended, so unfinished work leaves nothing open.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import metadata
from typing import Any, Final
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from builtin_plugins.features.tracing.settings import speaks_grpc
from core.api import EngineConfig, Registry

HEADERS: Final = ("traceparent", "tracestate")
"""Headers of W3C Trace Context."""
DRIFT_NS: Final = 10_000_000
"""Largest change of the offset between the two clocks that is not a set time of day, in ns."""
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class Tracer:
    """Makes spans and exports them in batches from a background thread.

    Spans that the collector rejects are dropped.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        resource = Resource.create()  # reads OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES
        if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "engine"}))
        self._provider = TracerProvider(resource=resource)
        self._spans = BatchSpanProcessor(exporter)
        self._provider.add_span_processor(self._spans)  # ended at interpreter exit
        self._epoch_ns = _epoch_ns()
        self._scope = InstrumentationScope("engine", metadata.version("core"))

    def new_context(self, name: str, parent: SpanContext) -> SpanContext:
        """Return the context of a new span below `parent`; an invalid parent starts a new trace.

        The parent, or the sampler in OTEL_TRACES_SAMPLER, decides whether it is sampled.
        """
        ids = self._provider.id_generator
        inherited = parent.is_valid
        trace_id = parent.trace_id if inherited else ids.generate_trace_id()
        sampled = self._provider.sampler.should_sample(as_context(parent), trace_id, name)
        flags = TraceFlags(
            TraceFlags.SAMPLED
            if sampled.decision is Decision.RECORD_AND_SAMPLE
            else TraceFlags.DEFAULT
        )
        return SpanContext(trace_id, ids.generate_span_id(), False, flags, sampled.trace_state)

    def emit(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext,
        times_s: tuple[float, float],
        attributes: Mapping[str, Any],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        error: str = "",
    ) -> None:
        """Export a sampled span. `times_s` are its start and end on the monotonic clock."""
        epoch_ns = self._epoch()
        begun_ns, ended_ns = (epoch_ns + int(seconds * 1e9) for seconds in times_s)
        span = ReadableSpan(
            name,
            context=context,
            parent=parent if parent.is_valid else None,
            resource=self._provider.resource,
            attributes={key: value for key, value in attributes.items() if value is not None},
            kind=kind,
            status=Status(StatusCode.ERROR, error) if error else Status(StatusCode.UNSET),
            start_time=begun_ns,
            end_time=max(begun_ns, ended_ns),
            instrumentation_scope=self._scope,
        )
        self._spans.on_end(span)

    def _epoch(self) -> int:
        """Return the Unix time of the monotonic clock's zero, in ns.

        It is the same for all spans, unless the time of day is set.
        """
        found_ns = _epoch_ns()
        if abs(found_ns - self._epoch_ns) > DRIFT_NS:
            self._epoch_ns = found_ns
        return self._epoch_ns

    def flush(self) -> None:
        """Export pending spans, within the library's timeout."""
        self._spans.force_flush()


def shared_tracer(registry: Registry, config: EngineConfig) -> Tracer:
    """Return the tracer of this process."""
    shared: Tracer = registry.shared(
        "tracer", lambda: Tracer(_exporter(config.options["otlp_traces_endpoint"]))
    )
    return shared


def as_context(context: SpanContext) -> Context:
    """Return a context with the span as the current one."""
    return trace.set_span_in_context(NonRecordingSpan(context), Context())


def from_headers(headers: Mapping[str, str]) -> SpanContext:
    """Return the span context in trace headers; an invalid one without any."""
    return trace.get_current_span(_PROPAGATOR.extract(headers, Context())).get_span_context()


def to_headers(context: SpanContext) -> dict[str, str]:
    """Return the trace headers of a span context."""
    headers: dict[str, str] = {}
    _PROPAGATOR.inject(headers, as_context(context))
    return headers


def _epoch_ns() -> int:
    return time.time_ns() - time.monotonic_ns()


def _exporter(endpoint: str) -> SpanExporter:
    """Return the exporter; OTEL_EXPORTER_OTLP_* set certificates, headers and timeouts."""
    if not speaks_grpc(endpoint):
        # lazy: only one of the two exporters is installed
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(endpoint=endpoint)
    # lazy: as above
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

    address = urlsplit(endpoint)
    exporter: SpanExporter = OverGrpc(
        endpoint=address.netloc, insecure=address.scheme in ("grpc", "http")
    )
    return exporter
