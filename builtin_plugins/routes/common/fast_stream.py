"""Fast path of streamed answers: the engine's delivery writes events directly to the connection.

One callback delivers the new text of all streams in the same event loop iteration. Waking a task
for each event would cost several times as much as encoding the event.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Protocol

from starlette.requests import Request

from core.api import CompletionOutput, RequestOutput
from core.api.serving import ServedEngine


class EventEncoder(Protocol):
    """Encodes one answer as server-sent events. Each output arrives by one of the two methods."""

    def encode_output(self, output: RequestOutput) -> bytes:
        """Return the events of an output: none, one or several."""
        ...

    def encode_delta(self, completion: CompletionOutput) -> bytes:
        """Return the events of a sequence's new text; never its first or last output."""
        ...


class FastStream:
    """Stream of one request. Its reader gets the first and last output, and all declined ones."""

    def __init__(self, engine: ServedEngine, request: Request | None) -> None:
        """Without a request, as for an answer that outlives it, the reader gets all outputs."""
        self._engine = engine
        self._state = {} if request is None else request.scope.setdefault("state", {})
        self._error: Exception | None = None

    async def events(
        self, run_id: str, outputs: AsyncGenerator[RequestOutput], encoder: EventEncoder
    ) -> AsyncGenerator[bytes]:
        """Yield the events of engine request `run_id` that the fast path has not written."""
        is_open = False
        async with aclosing(outputs):
            async for output in outputs:
                if self._error is not None:
                    raise self._error
                if data := encoder.encode_output(output):
                    yield data
                if is_open:
                    continue
                writer = self._state.get("direct_writer")
                if writer is not None:  # the response headers have been sent
                    is_open = True
                    self._engine.set_delivery_callback(
                        run_id, self._delivery(writer, encoder.encode_delta)
                    )

    def _delivery(
        self, writer: Any, encode: Callable[[CompletionOutput], bytes]
    ) -> Callable[[CompletionOutput], bool]:
        def deliver(completion: CompletionOutput) -> bool:
            if writer.must_wait:
                return False
            try:
                writer.write_soon(encode(completion))
            except Exception as error:  # noqa: BLE001 - raised by the reader, which gets the output
                self._error = error
                return False
            return True

        return deliver
