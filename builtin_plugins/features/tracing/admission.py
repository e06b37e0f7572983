"""The half at the edge: where a request's span is found, told to the engine and kept until its end.

The span's parent is the one that is current: the HTTP request's, or that of a program that has an
`AsyncLLM` and is traced itself. `trace_headers`, a keyword of `generate`, names another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from opentelemetry import trace
from opentelemetry.trace import SpanContext

from builtin_plugins.features.tracing.detail import NAME, Stay
from builtin_plugins.features.tracing.tracer import HEADERS, Tracer, headers_of, read_headers
from core.api import Draft, EngineConfig, InvalidRequest, RequestStats

SPAN: Final = "llm_request"


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """What the span of one request is made of when the request has ended."""

    tracer: Tracer
    place: SpanContext
    parent: SpanContext
    model: str
    draft: Draft

    def ended(self, stats: RequestStats) -> None:
        """Export the span. Names of attributes are vLLM's, and OpenTelemetry's for generative AI."""
        sampling = self.draft.sampling
        begun_s = self.draft.arrival_s
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
            SPAN, self.place, self.parent, (begun_s, begun_s + stats.e2e_s), attributes, error=error
        )


class Admission:
    """Gives every request that is sampled a place in its trace, and exports what the engine saw of
    it.
    """

    keywords = ("trace_headers",)

    def __init__(self, tracer: Tracer, config: EngineConfig) -> None:
        self._tracer = tracer
        self._model = (config.model.served_model_name or [config.model.model])[0]

    def concerns(self, draft: Draft) -> bool:
        """Say yes: whether a request is sampled is found out below."""
        return True

    async def prepare(self, draft: Draft) -> Draft:
        """Return the request with the trace headers of its span as a feature.

        Raises `InvalidRequest`.
        """
        given = draft.given.get("trace_headers")
        parent = (
            trace.get_current_span().get_span_context()
            if given is None
            else read_headers(_checked(given))
        )
        place = self._tracer.place(SPAN, parent)
        if not place.trace_flags.sampled:
            return draft
        kept = RequestTrace(self._tracer, place, parent, self._model, draft)
        told = msgspec.json.encode(headers_of(place))
        return replace(
            draft, features={**draft.features, NAME: told}, shown={**draft.shown, "trace": kept}
        )

    def finished(self, features: Mapping[str, bytes]) -> Mapping[str, Any]:
        """Export a sequence's stay in the engine: its time in the queue, and each place in the
        batch.
        """
        told = features.get(NAME)
        if told is not None:
            self._show(msgspec.msgpack.decode(told, type=Stay))
        return {}

    def _show(self, stay: Stay) -> None:
        parent = read_headers(msgspec.json.decode(stay.context, type=dict[str, str]))
        common = {"gen_ai.request.id": stay.engine_id, "process.pid": stay.pid}
        queued = (stay.arrived_s, stay.places[0][0]) if stay.places else None
        if queued is not None:
            self._emit("engine.queue", parent, queued, common)
        for number, times_s in enumerate(stay.places):
            own: dict[str, Any] = {
                "engine.place": number,
                "engine.preempted": number < len(stay.places) - 1,
            }
            if number == len(stay.places) - 1:
                own["engine.preemptions"] = stay.preemptions
                own["gen_ai.latency.time_in_model_forward"] = stay.forward_s
                own["gen_ai.latency.time_in_model_execute"] = stay.execute_s
            self._emit("engine.compute", parent, times_s, {**common, **own})

    def _emit(
        self,
        name: str,
        parent: SpanContext,
        times_s: tuple[float, float],
        attributes: Mapping[str, Any],
    ) -> None:
        self._tracer.emit(name, self._tracer.place(name, parent), parent, times_s, attributes)


def _checked(given: Any) -> dict[str, str]:
    """Return those of the headers that are about traces."""
    if not isinstance(given, Mapping) or not all(
        isinstance(part, str) for pair in given.items() for part in pair
    ):
        raise InvalidRequest(
            "trace_headers", f"must be texts by name, such as traceparent, not {given!r:.100}."
        )
    return {name.lower(): value for name, value in given.items() if name.lower() in HEADERS}
