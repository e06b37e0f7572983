"""Spans as finished pieces of data, and the thread that takes them to the collector. Knows
OpenTelemetry, no request.

A span's place in its trace is decided when the work begins, because others have to be told of it;
the span itself is made when the work has ended. So nothing is kept open, and what never ends leaves
nothing behind.
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

from builtin_plugins.features.tracing.endpoint import speaks_grpc
from core.api import EngineConfig

HEADERS: Final = ("traceparent", "tracestate")
"""Of the W3C's recommendation "Trace Context"."""
DRIFT_NS: Final = 10_000_000
"""By how much the two clocks may differ from what was read before; less is the time between two
looks.
"""
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class Tracer:
    """Makes spans and exports them in batches, off the threads that serve.

    What a collector does not take is dropped.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        resource = Resource.create()  # with what OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say
        if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "engine"}))
        self._provider = TracerProvider(resource=resource)
        self._spans = BatchSpanProcessor(exporter)
        self._provider.add_span_processor(self._spans)  # which is then ended with the interpreter
        self._epoch_ns = _epoch_ns()
        self._scope = InstrumentationScope("engine", metadata.version("core"))

    def place(self, name: str, parent: SpanContext) -> SpanContext:
        """Return the place of a new span below `parent`, or, where that is not valid, in a trace of
        its own.

        Whether it is sampled its parent has decided, or the sampler that OTEL_TRACES_SAMPLER names.
        """
        ids = self._provider.id_generator
        inherited = parent.is_valid
        trace_id = parent.trace_id if inherited else ids.generate_trace_id()
        asked = self._provider.sampler.should_sample(context_of(parent), trace_id, name)
        flags = TraceFlags(
            TraceFlags.SAMPLED
            if asked.decision is Decision.RECORD_AND_SAMPLE
            else TraceFlags.DEFAULT
        )
        return SpanContext(trace_id, ids.generate_span_id(), False, flags, asked.trace_state)

    def emit(
        self,
        name: str,
        place: SpanContext,
        parent: SpanContext,
        times_s: tuple[float, float],
        attributes: Mapping[str, Any],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        error: str = "",
    ) -> None:
        """Export a span that lasted from the first to the second of two times of the monotonic
        clock, if it is sampled.
        """
        epoch_ns = self._epoch()
        begun_ns, ended_ns = (epoch_ns + int(seconds * 1e9) for seconds in times_s)
        span = ReadableSpan(
            name,
            context=place,
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
        """Return when the monotonic clock was zero.

        The same for all spans, unless the time of day was set meanwhile.
        """
        found_ns = _epoch_ns()
        if abs(found_ns - self._epoch_ns) > DRIFT_NS:
            self._epoch_ns = found_ns
        return self._epoch_ns

    def flush(self) -> None:
        """Export what is left, within the library's own limit of time."""
        self._spans.force_flush()


def tracer_of(registry: Any, config: EngineConfig) -> Tracer:
    """Return the tracer that all of the serving process shares."""
    shared: Tracer = registry.shared(
        "tracer", lambda: Tracer(_exporter(config.options["otlp_traces_endpoint"]))
    )
    return shared


def context_of(place: SpanContext) -> Context:
    """Return a place as OpenTelemetry's current span."""
    return trace.set_span_in_context(NonRecordingSpan(place), Context())


def read_headers(headers: Mapping[str, str]) -> SpanContext:
    """Return the place that trace headers name; an invalid one where they name none."""
    return trace.get_current_span(_PROPAGATOR.extract(headers, Context())).get_span_context()


def headers_of(place: SpanContext) -> dict[str, str]:
    """Return the trace headers that name a place."""
    headers: dict[str, str] = {}
    _PROPAGATOR.inject(headers, context_of(place))
    return headers


def _epoch_ns() -> int:
    return time.time_ns() - time.monotonic_ns()


def _exporter(endpoint: str) -> SpanExporter:
    """Return what speaks to the collector; certificates, headers and time limits are those of
    OTEL_EXPORTER_OTLP_*.
    """
    if not speaks_grpc(endpoint):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter,
        )  # lazy: one of two

        return OTLPSpanExporter(endpoint=endpoint)
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
        OTLPSpanExporter as OverGrpc,
    )  # lazy: the other

    address = urlsplit(endpoint)
    exporter: SpanExporter = OverGrpc(
        endpoint=address.netloc, insecure=address.scheme in ("grpc", "http")
    )
    return exporter
