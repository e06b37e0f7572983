"""The short way of a stream: from the engine's delivery to the connection in two turns of the event
loop, for all streams together.

A task that wakes for each event, and the generators it passes through, cost several times what the
event does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Protocol

from starlette.requests import Request

from core.api import CompletionOutput, RequestOutput


class Encoder(Protocol):
    """Makes the events of an answer: of all that comes, in order, either by the one or by the
    other.
    """

    def of(self, output: RequestOutput) -> bytes:
        """Return the events of an output: none, one or several."""
        ...

    def more(self, completion: CompletionOutput) -> bytes:
        """Return those of what is new of one sequence; not the first of the answer, and no end of a
        sequence.
        """
        ...


class ShortWay:
    """Of one request.

    The reader of its outputs stays: it gets the first and the last, and whatever the short way
    cannot take.
    """

    def __init__(self, engine: Any, request: Request) -> None:
        self._engine = engine
        self._state = request.scope.setdefault("state", {})
        self._fault: Exception | None = None

    async def events(
        self, run_id: str, outputs: AsyncGenerator[RequestOutput], encoder: Encoder
    ) -> AsyncGenerator[bytes]:
        """Yield what becomes of the outputs of the engine's request `run_id`, but for what goes the
        short way.
        """
        is_open = False
        async with aclosing(outputs):
            async for output in outputs:
                if self._fault is not None:
                    raise self._fault
                if data := encoder.of(output):
                    yield data
                if (
                    not is_open and (parts := self._state.get("parts")) is not None
                ):  # the answer's head has been sent
                    is_open = True
                    self._engine.hand_to(run_id, self._taker(parts, encoder.more))

    def _taker(
        self, parts: Any, encode: Callable[[CompletionOutput], bytes]
    ) -> Callable[[CompletionOutput], bool]:
        def take(completion: CompletionOutput) -> bool:
            if parts.must_wait:
                return False
            try:
                parts.write_soon(encode(completion))
            except Exception as error:  # noqa: BLE001 - it is for the reader, who gets the output instead
                self._fault = error
                return False
            return True

        return take
