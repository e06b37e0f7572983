"""ASGI middleware with a span for each HTTP request, current while the request is served."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from opentelemetry import context
from opentelemetry.trace import SpanContext, SpanKind
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from builtin_plugins.features.tracing.tracer import HEADERS, Tracer, as_context, from_headers

WITHOUT_SPAN: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods without a span: probes, pages and lists do not reach the engine."""


class HttpSpans:
    """Wraps an application; refused requests have a span too."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, self._until_shutdown(receive), send)
        elif scope["type"] != "http" or scope["method"] in WITHOUT_SPAN:
            await self._app(scope, receive, send)
        else:
            await self._traced(scope, receive, send)

    def _until_shutdown(self, receive: Receive) -> Receive:
        async def flushing() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":  # the process may skip interpreter exit
                await asyncio.to_thread(self._tracer.flush)
            return message

        return flushing

    async def _traced(self, scope: Scope, receive: Receive, send: Send) -> None:
        parent = _parent(scope)
        span_context = self._tracer.new_context(scope["method"], parent)
        begun_s = time.monotonic()
        status = 0

        async def recording(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        token = context.attach(as_context(span_context))
        try:
            await self._app(scope, receive, recording)
        finally:
            context.detach(token)
            template = scope.get("state", {}).get("template") or ""  # set by the server's router
            attributes = {
                "http.request.method": scope["method"],
                "http.route": template or None,
                "http.response.status_code": status or None,
                "url.scheme": scope.get("scheme"),
            }
            error = ""
            if not status:
                error = "no answer: the client left"
            elif status >= 500:
                error = f"status {status}"
            name = f"{scope['method']} {template}".rstrip()
            times_s = begun_s, time.monotonic()
            self._tracer.emit(
                name, span_context, parent, times_s, attributes, kind=SpanKind.SERVER, error=error
            )


def _parent(scope: Scope) -> SpanContext:
    """Return the client's span, from the trace headers."""
    names = {name.encode(): name for name in HEADERS}
    return from_headers(
        {names[name]: value.decode("latin-1") for name, value in scope["headers"] if name in names}
    )
