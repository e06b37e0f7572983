"""One HTTP request's span, which is current while the request is served.

Plain ASGI; knows no route.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from opentelemetry import context
from opentelemetry.trace import SpanContext, SpanKind
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from builtin_plugins.features.tracing.tracer import HEADERS, Tracer, context_of, read_headers

WITHOUT_SPAN: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Probes, pages, lists: they ask nothing of the engine."""


class Traced:
    """Wraps an application.

    Refused requests have a span, too; a chunk of a stream costs one more call.
    """

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
        async def heard() -> Message:
            message = await receive()
            if (
                message["type"] == "lifespan.shutdown"
            ):  # the process may end without its interpreter
                await asyncio.to_thread(self._tracer.flush)
            return message

        return heard

    async def _traced(self, scope: Scope, receive: Receive, send: Send) -> None:
        parent = _parent(scope)
        place = self._tracer.place(scope["method"], parent)
        begun_s = time.monotonic()
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        token = context.attach(context_of(place))
        try:
            await self._app(scope, receive, watched)
        finally:
            context.detach(token)
            template = (
                scope.get("state", {}).get("template") or ""
            )  # which the server has found out meanwhile
            attributes = {
                "http.request.method": scope["method"],
                "http.route": template or None,
                "http.response.status_code": status or None,
                "url.scheme": scope.get("scheme"),
            }
            error = (
                f"status {status}"
                if status >= 500
                else ""
                if status
                else "no answer: the client left"
            )
            name = f"{scope['method']} {template}".rstrip()
            times_s = begun_s, time.monotonic()
            self._tracer.emit(
                name, place, parent, times_s, attributes, kind=SpanKind.SERVER, error=error
            )


def _parent(scope: Scope) -> SpanContext:
    """Return the span that the client names."""
    names = {name.encode(): name for name in HEADERS}
    return read_headers(
        {names[name]: value.decode("latin-1") for name, value in scope["headers"] if name in names}
    )
