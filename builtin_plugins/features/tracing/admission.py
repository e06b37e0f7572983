"""Admission extension that gives sampled requests a span, and exports the engine's spans.

The parent is the current span: the HTTP request's, or that of a traced program with an `AsyncLLM`.
`trace_headers`, a keyword of `generate`, selects another parent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from opentelemetry import trace
from opentelemetry.trace import SpanContext

from builtin_plugins.features.tracing.messages import BatchResidency
from builtin_plugins.features.tracing.settings import NAME
from builtin_plugins.features.tracing.tracer import HEADERS, Tracer, from_headers, to_headers
from core.api import EngineConfig, InvalidRequest
from core.api.features import PendingRequest
from core.api.telemetry import RequestStats

SPAN: Final = "llm_request"


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """Data of one request's span until the request ends."""

    tracer: Tracer
    context: SpanContext
    parent: SpanContext
    model: str
    request: PendingRequest

    def ended(self, stats: RequestStats) -> None:
        """Export the span, with the attribute names of vLLM and OpenTelemetry's generative AI."""
        sampling = self.request.sampling
        begun_s = self.request.arrival_s
        attributes = {
            "gen_ai.request.id": stats.request_id,
            "gen_ai.request.model": self.model,
            "gen_ai.response.model": self.model,
            "gen_ai.response.finish_reasons": [stats.finish_reason],
            "gen_ai.request.n": stats.n,
            "gen_ai.request.max_tokens": stats.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.usage.num_sequences": stats.n,
            "gen_ai.usage.prompt_tokens": stats.prompt_tokens,
            "gen_ai.usage.completion_tokens": stats.generated_tokens,
            "gen_ai.usage.cached_tokens": stats.cached_tokens,
            "gen_ai.latency.time_in_queue": stats.queue_s,
            "gen_ai.latency.time_to_first_token": stats.ttft_s,
            "gen_ai.latency.e2e": stats.e2e_s,
            "gen_ai.latency.time_in_model_prefill": stats.prefill_s,
            "gen_ai.latency.time_in_model_decode": stats.decode_s,
            "gen_ai.latency.time_in_model_inference": stats.inference_s,
        }
        error = "the request failed inside the engine" if stats.finish_reason == "error" else ""
        self.tracer.emit(
            SPAN,
            self.context,
            self.parent,
            (begun_s, begun_s + stats.e2e_s),
            attributes,
            error=error,
        )


class Admission:
    """Gives sampled requests a span, and exports the engine's part of it."""

    keywords = ("trace_headers",)

    def __init__(self, tracer: Tracer, config: EngineConfig) -> None:
        self._tracer = tracer
        self._model = (config.model.served_model_name or [config.model.model])[0]

    def applies_to(self, request: PendingRequest) -> bool:
        """Return True; `prepare` decides whether a request is sampled."""
        return True

    async def prepare(self, request: PendingRequest) -> PendingRequest:
        """Return the request with the trace headers of its span as a feature.

        Raises `InvalidRequest`.
        """
        given = request.plugin_fields.get("trace_headers")
        if given is None:
            parent = trace.get_current_span().get_span_context()
        else:
            parent = from_headers(_checked(given))
        context = self._tracer.new_context(SPAN, parent)
        if not context.trace_flags.sampled:
            return request
        request_trace = RequestTrace(self._tracer, context, parent, self._model, request)
        headers = msgspec.json.encode(to_headers(context))
        return replace(
            request,
            features={**request.features, NAME: headers},
            extra_fields={**request.extra_fields, "trace": request_trace},
        )

    def finished(self, features: Mapping[str, bytes]) -> Mapping[str, Any]:
        """Export a sequence's time in the queue, and each of its spans in the batch."""
        residency = features.get(NAME)
        if residency is not None:
            self._export(msgspec.msgpack.decode(residency, type=BatchResidency))
        return {}

    def _export(self, residency: BatchResidency) -> None:
        parent = from_headers(msgspec.json.decode(residency.context, type=dict[str, str]))
        common = {"gen_ai.request.id": residency.engine_id, "process.pid": residency.pid}
        queued = (residency.arrived_s, residency.spans[0][0]) if residency.spans else None
        if queued is not None:
            self._emit("engine.queue", parent, queued, common)
        for number, times_s in enumerate(residency.spans):
            own: dict[str, Any] = {
                "engine.place": number,
                "engine.preempted": number < len(residency.spans) - 1,
            }
            if number == len(residency.spans) - 1:
                own["engine.preemptions"] = residency.preemptions
                own["gen_ai.latency.time_in_model_forward"] = residency.forward_s
                own["gen_ai.latency.time_in_model_execute"] = residency.execute_s
            self._emit("engine.compute", parent, times_s, {**common, **own})

    def _emit(
        self,
        name: str,
        parent: SpanContext,
        times_s: tuple[float, float],
        attributes: Mapping[str, Any],
    ) -> None:
        self._tracer.emit(name, self._tracer.new_context(name, parent), parent, times_s, attributes)


def _checked(given: Any) -> dict[str, str]:
    """Return the trace headers. Raises `InvalidRequest`."""
    if not isinstance(given, Mapping) or not all(
        isinstance(part, str) for pair in given.items() for part in pair
    ):
        raise InvalidRequest(
            "trace_headers", f"must be texts by name, such as traceparent, not {given!r:.100}."
        )
    return {name.lower(): value for name, value in given.items() if name.lower() in HEADERS}
