"""Server-sent events, merged streams, and cancellation when the client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from typing import Any, Generic, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
"""Comment of a stream without news, for proxies that close silent connections."""


def event(data: Any) -> bytes:
    """Return one server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def typed_event(data: Mapping[str, Any]) -> bytes:
    """Return one server-sent event with its type as its name."""
    return b"event: " + str(data["type"]).encode() + b"\n" + event(data)


def text_event_template(
    data: Any, name: str, whole: Callable[[Any], bytes] = event
) -> Callable[[str], bytes]:
    """Return an encoder of the event of `data` with other texts in the field `name`.

    `whole` encodes `data` once, for the constant part. The field is empty there, and the only empty
    one of this name.
    """
    before, after = _split_at_field(whole(data), name, '""')
    encode = msgspec.json.encode
    return lambda text: before + encode(text) + after


def numbered_text_event_template(
    data: Mapping[str, Any], number: str, name: str
) -> Callable[[int, str], bytes]:
    """Return an encoder of the typed event of `data` with other numbers and texts.

    The field `number` comes first, and is -1 in `data`.
    """
    before, rest = _split_at_field(typed_event(data), number, "-1")
    between, after = _split_at_field(rest, name, '""')
    encode = msgspec.json.encode
    return lambda count, text: b"%b%d%b%b%b" % (before, count, between, encode(text), after)


def _split_at_field(encoded: bytes, name: str, value: str) -> tuple[bytes, bytes]:
    """Return the bytes before and after a field's value; quotes inside of strings are escaped."""
    field = f'"{name}":'.encode()
    before, _, after = encoded.partition(field + value.encode())
    return before + field, after


class EventStream:
    """ASGI response that sends events as they come, and closes them on a disconnect."""

    def __init__(
        self,
        events: AsyncGenerator[bytes] | StartedStream[bytes],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._events = events
        self._headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",  # no buffering by proxies
            **{name.lower(): value for name, value in (headers or {}).items()},
        }

    async def aclose(self) -> None:
        """Read no further event."""
        await self._events.aclose()

    async def events(self) -> AsyncGenerator[bytes]:
        """Yield the events, for other transports than HTTP."""
        try:
            async for data in self._events:
                yield data
        finally:
            await self._events.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events; the server reports their exceptions to the client."""
        headers = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        interval_s = keep_alive_s(scope)
        if interval_s:
            sending = self._send_alive(scope, send, interval_s)
        else:
            sending = self._send_all(scope, send)
        try:
            await _while_connected(receive, sending)
        except ClientDisconnected:
            pass
        finally:
            await self._events.aclose()

    async def _send_all(self, scope: Scope, send: Send) -> None:
        writer = scope.get("state", {}).get(
            "direct_writer"
        )  # writes directly, if the server supports it
        async for data in self._events:
            if writer is None:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            elif writer.must_wait:
                await writer.write_when_read(data)
            else:
                writer.write(data)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_alive(self, scope: Scope, send: Send, interval_s: float) -> None:
        """Send all events, and a comment after each interval without one."""
        num_sent = 0
        is_sending = False

        async def counted(message: Message) -> None:
            nonlocal num_sent, is_sending
            num_sent += 1
            is_sending = True
            try:
                await send(message)
            finally:
                is_sending = False

        async def keep_alive() -> None:
            writer = scope.get("state", {}).get("direct_writer")
            seen = -1
            if (
                isinstance(self._events, StartedStream) and self._events.is_waiting
            ):  # the interval has passed before the first event
                await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
            while True:
                await asyncio.sleep(interval_s)
                count = num_sent if writer is None else writer.num_writes
                if count == seen and writer is not None and not writer.must_wait:
                    writer.write(KEEP_ALIVE)
                elif count == seen and writer is None and not is_sending:
                    await counted(
                        {"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True}
                    )
                seen = num_sent if writer is None else writer.num_writes

        alive = asyncio.ensure_future(keep_alive())
        try:
            await self._send_all(scope, counted)
        finally:
            alive.cancel()


class ClientDisconnected(HTTPException):
    """The client closed the connection before the answer was complete."""

    def __init__(self) -> None:
        super().__init__(499, "the client closed the connection.")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; cancel it and raise `ClientDisconnected` on a disconnect.

    Call it only after the body has been read.
    """
    return await _while_connected(request.receive, work)


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnected
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
        # An exception holds this frame: a task that holds the exception would be a reference cycle.
        del task, gone


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def keep_alive_s(scope: Scope) -> float:
    """Return the interval of keep-alive comments in seconds; 0: none."""
    return float(scope.get("state", {}).get("sse_keep_alive_s", 0.0))


async def wait_for_first(stream: AsyncGenerator[T], within_s: float = 0.0) -> StartedStream[T]:
    """Wait for the first item, so that an error precedes the headers; return the whole stream.

    With `within_s`, the wait ends after that many seconds; later errors come in the stream.
    """
    if not within_s:
        try:
            return StartedStream([await anext(stream)], stream)
        except StopAsyncIteration:
            return StartedStream([], stream)
    first = asyncio.ensure_future(_next(stream))
    try:
        await asyncio.wait({first}, timeout=within_s)
    except asyncio.CancelledError:
        first.cancel()
        raise
    if first.done():
        return StartedStream(first.result(), stream)
    return StartedStream([], stream, first)


class StartedStream(Generic[T]):
    """A stream with its first item read; later items come from the stream without overhead."""

    def __init__(
        self,
        first: list[T],
        rest: AsyncGenerator[T],
        pending: asyncio.Future[list[T]] | None = None,
    ) -> None:
        """`pending` is the first item, if it has not come yet."""
        self._first = first
        self._rest = rest
        self._pending = pending

    @property
    def is_waiting(self) -> bool:
        """Whether the first item has not come yet."""
        return self._pending is not None and not self._pending.done()

    def __aiter__(self) -> StartedStream[T]:
        return self

    def __anext__(self) -> Awaitable[T]:
        return self._first_item() if self._first or self._pending else anext(self._rest)

    async def _first_item(self) -> T:
        if self._pending is not None:
            self._first = await self._pending
            self._pending = None
        if not self._first:
            raise StopAsyncIteration
        return self._first.pop()

    async def aclose(self) -> None:
        """Close the stream."""
        if self._pending is not None:
            self._pending.cancel()
            await asyncio.gather(self._pending, return_exceptions=True)
        await self._rest.aclose()


async def merge_streams(streams: Sequence[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """Yield (stream index, item) of all streams as items come; closing it closes all streams."""
    if len(streams) == 1:  # the usual case needs no task per item
        async with _closing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    waiting: dict[asyncio.Future[list[T]], int] = {}
    try:
        for i, stream in enumerate(streams):
            waiting[asyncio.ensure_future(_next(stream))] = i
            await asyncio.sleep(0)  # starting a thousand at once would delay every other stream
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=waiting.__getitem__):
                index = waiting.pop(task)
                items = task.result()
                for item in items:
                    waiting[asyncio.ensure_future(_next(streams[index]))] = index
                    yield index, item
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for stream in streams:
            async with _closing(stream):
                pass


@contextlib.asynccontextmanager
async def _closing(stream: AsyncIterator[T]) -> AsyncGenerator[AsyncIterator[T]]:
    try:
        yield stream
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


async def _next(stream: AsyncIterator[T]) -> list[T]:
    """Return the next item in a list; an empty list at the end."""
    try:
        return [await anext(stream)]
    except StopAsyncIteration:
        return []
