"""Answers that come in pieces: server-sent events, several streams as one, and clients that leave."""

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
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"


def event(data: Any) -> bytes:
    """Return one server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def typed_event(data: Mapping[str, Any]) -> bytes:
    """Return one server-sent event that bears its type as its name."""
    return b"event: " + str(data["type"]).encode() + b"\n" + event(data)


def event_with_text(
    data: Any, name: str, whole: Callable[[Any], bytes] = event
) -> Callable[[str], bytes]:
    """Return what makes the event of `data` with another text in the field `name`, which is empty
    there and nowhere else.

    What the events of one answer have in common is encoded once, by `whole`.
    """
    before, after = _around(whole(data), name, '""')
    encode = msgspec.json.encode
    return lambda text: before + encode(text) + after


def numbered_event_with_text(
    data: Mapping[str, Any], number: str, name: str
) -> Callable[[int, str], bytes]:
    """Return what makes the typed event of `data` with another number and text: `number` comes
    first, and is -1 there.
    """
    before, rest = _around(typed_event(data), number, "-1")
    between, after = _around(rest, name, '""')
    encode = msgspec.json.encode
    return lambda count, text: b"%b%d%b%b%b" % (before, count, between, encode(text), after)


def _around(encoded: bytes, name: str, value: str) -> tuple[bytes, bytes]:
    """Return what stands before a field's value and behind it; within a text its quotes would be
    escaped.
    """
    field = f'"{name}":'.encode()
    before, _, after = encoded.partition(field + value.encode())
    return before + field, after


class EventStream:
    """An ASGI response that sends each event as it comes; the events are closed when the client
    leaves.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes] | Opened[bytes],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._events = events
        self._headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",  # proxies would hold events back
            **{name.lower(): value for name, value in (headers or {}).items()},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events; an exception of theirs passes through to the server, which tells the
        client.
        """
        headers = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await _while_connected(receive, self._send_all(scope, send))
        except ClientGone:
            pass
        finally:
            await self._events.aclose()

    async def _send_all(self, scope: Scope, send: Send) -> None:
        parts = scope.get("state", {}).get("parts")  # the server's quick way, where it has one
        async for data in self._events:
            if parts is None:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            elif parts.must_wait:
                await parts.write_when_read(data)
            else:
                parts.write(data)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class ClientGone(HTTPException):
    """The client closed the connection; nobody reads the answer."""

    def __init__(self) -> None:
        super().__init__(499, "the client closed the connection.")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns; cancel it and raise `ClientGone` as soon as the client has left.

    Call it only after the body was read.
    """
    return await _while_connected(request.receive, work)


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def started(stream: AsyncGenerator[T]) -> Opened[T]:
    """Wait for the first item, so that a refusal comes before any header, and return the whole
    stream.
    """
    try:
        return Opened([await anext(stream)], stream)
    except StopAsyncIteration:
        return Opened([], stream)


class Opened(Generic[T]):
    """A stream of which the first item was taken.

    It stands beside the stream and not around it, so an item costs no more.
    """

    def __init__(self, first: list[T], rest: AsyncGenerator[T]) -> None:
        self._first = first
        self._rest = rest

    def __aiter__(self) -> Opened[T]:
        return self

    def __anext__(self) -> Awaitable[T]:
        return self._take() if self._first else anext(self._rest)

    async def _take(self) -> T:
        return self._first.pop()

    async def aclose(self) -> None:
        """Close the stream."""
        await self._rest.aclose()


async def merged(streams: Sequence[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """Yield (stream index, item) from all streams as they come; closing it closes them all."""
    if len(streams) == 1:  # the usual case, without a task for each item
        async with _closing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    waiting: dict[asyncio.Future[list[T]], int] = {}
    try:
        for i, stream in enumerate(streams):
            waiting[asyncio.ensure_future(_next(stream))] = i
            await asyncio.sleep(0)  # a thousand that begin at once would hold up every other stream
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
