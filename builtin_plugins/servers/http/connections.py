"""A connection as uvicorn serves it, watched: heads that grow, requests that do not arrive, answers
nobody reads.

One look per second over all connections; a chunk of a stream costs nothing.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import logging
from collections.abc import Iterable
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from builtin_plugins.servers.http.errors import ErrorAnswer
from builtin_plugins.servers.http.limits import Limits
from builtin_plugins.servers.http.until_closed import end_by_closing

log = logging.getLogger(__name__)

_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
MADE_ROOM: Final = 8
"""Idle connections that go when no more can be taken."""
COMPLAIN_S: Final = 60.0
"""Between two lines of the log about connections that cannot be taken."""
SEND_BUFFER_BYTES: Final = 128 * 1024
"""What the system holds for a client that does not read, instead of megabytes."""


class WatchedConnection(AutoHTTPProtocol):  # type: ignore[valid-type, misc]
    """uvicorn's protocol, whichever parser is installed."""

    limits: ClassVar[Limits]

    def connection_made(self, transport: Any) -> None:
        """Take a client in, or tell it that there is no place."""
        super().connection_made(transport)
        self._since_s = self._moved_s = self.loop.time()
        self._head_bytes = self._unsent_bytes = 0
        self._was_between = True
        self._is_whole = self._is_refused = False
        if len(self.connections) > self.limits.connections:
            close_idle(each for each in self.connections if each is not self)
            standing = sum(not each.transport.is_closing() for each in self.connections)
            if standing > self.limits.connections + self.limits.spare_connections:
                self._end(self.limits.crowded())

    def data_received(self, data: bytes) -> None:
        """Take bytes in; a head that is too long before it has ended is refused."""
        if self._is_refused or self.transport.is_closing():
            return
        cycle = self.cycle
        between = self._is_between
        if self.is_idle:
            self._since_s = self.loop.time()  # the next request begins
        super().data_received(data)
        if self.cycle is not cycle:
            self._since_s = self.loop.time()
            self._head_bytes = 0
            self._was_between = False
        elif between and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes:
                self._end(self.limits.head_too_large())

    def on_headers_complete(self) -> None:
        """Called by the parser httptools: a body may follow."""
        self._is_whole = False
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before and self.scope["http_version"] == "1.0":
            end_by_closing(self.cycle)  # its task has not begun

    def on_message_complete(self) -> None:
        """Called by the parser httptools: nothing of this request follows."""
        self._is_whole = True
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Called when much waits to be read: begin to look whether it is."""
        super().pause_writing()
        self._moved_s = self.loop.time()
        self._unsent_bytes = 0

    def check(self, now_s: float) -> None:
        """Cut the connection if its client has kept it waiting for too long."""
        between = self._is_between
        if between and not self._was_between:
            self._since_s = now_s
        self._was_between = between
        waited_s = now_s - self._since_s
        most_s = self.limits.read_timeout_s
        if self._is_stuck(now_s):
            log.info(
                "a client has not read its answer for %g s and is cut", self.limits.stall_timeout_s
            )
            self.transport.abort()
        elif self.transport.is_closing():
            pass
        elif self._is_refused:
            self.transport.close()
        elif between:
            if waited_s > most_s and not self.is_idle:
                self._end(self.limits.too_slow())
        elif self._is_arriving and waited_s > most_s + 1:  # the route had its chance to say so
            self.transport.abort()

    @property
    def is_idle(self) -> bool:
        """A request was answered, and nothing of another has come: how long it may stay so is
        uvicorn's to watch.
        """
        return self.cycle is not None and self._is_between and not self._head_bytes

    @property
    def may_go(self) -> bool:
        """Nothing of a request is here, and no answer under way."""
        return self._is_between and not (
            self._head_bytes or self._is_refused or self.transport.is_closing()
        )

    @property
    def idle_since_s(self) -> float:
        """When the last request ended, or the connection was made."""
        return float(self._since_s)

    @property
    def _is_arriving(self) -> bool:
        return bool(self.cycle.more_body) and not self._is_whole

    @property
    def _is_between(self) -> bool:
        """No request is under way: the next one's head is awaited."""
        cycle = self.cycle
        return cycle is None or bool(cycle.response_complete and not self._is_arriving)

    def _is_stuck(self, now_s: float) -> bool:
        """Say whether an answer waits, nothing is added to it, and none of it has been read for too
        long.
        """
        unsent = int(self.transport.get_write_buffer_size())
        done = self.transport.is_closing() or self.cycle is None or self.cycle.response_complete
        if not unsent or unsent < self._unsent_bytes or not (done or self.flow.write_paused):
            self._moved_s = now_s
        self._unsent_bytes = unsent
        return bool(now_s - self._moved_s > self.limits.stall_timeout_s)

    def _end(self, answer: ErrorAnswer) -> None:
        """Answer without a request that could be understood, and close: not at once, or the answer
        might be lost.
        """
        body = answer.body()
        fields = {
            "Connection": "close",
            "Content-Type": "application/json",
            "Content-Length": len(body),
        }
        head = "".join(
            f"{name.lower()}: {value}\r\n" for name, value in {**fields, **answer.headers}.items()
        )
        self.transport.write(f"HTTP/1.1 {answer.status} Refused\r\n{head}\r\n".encode() + body)
        self._is_refused = True
        if self.transport.can_write_eof():
            self.transport.write_eof()


def protocol(limits: Limits) -> type[asyncio.Protocol]:
    """Return the class of connections with these limits."""
    return type("Connection", (WatchedConnection,), {"limits": limits})


def close_idle(connections: Iterable[Any], most: int = 1) -> None:
    """Close those connections that have been idle for longest, for others to be taken in their
    place.
    """
    idle = [each for each in connections if isinstance(each, WatchedConnection) and each.may_go]
    for each in heapq.nsmallest(most, idle, key=lambda each: each.idle_since_s):
        each.transport.close()


class AcceptFaults:
    """Handles what the event loop cannot: connections that cannot be taken are a line a minute, and
    idle ones go for them.
    """

    def __init__(self, connections: Iterable[Any]) -> None:
        self._connections = connections
        self._num_since = 0
        self._told_s = self._closed_s = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take what happened; the loop tries again after a second, and tells of each connection
        that waits.
        """
        error = context.get("exception")
        if (
            isinstance(error, OSError)
            and error.errno == errno.EBADF
            and "_start_serving" in str(context.get("handle"))
        ):
            return  # asyncio tries again although the server has been closed meanwhile
        if not isinstance(error, OSError) or error.errno not in _NO_ROOM or "socket" not in context:
            loop.default_exception_handler(context)
            return
        now_s = loop.time()
        self._num_since += 1
        if now_s - self._told_s > COMPLAIN_S:
            log.warning(
                "connections wait to be taken: %s (%d times)", error.strerror, self._num_since
            )
            self._told_s = now_s
            self._num_since = 0
        if now_s - self._closed_s > 0.5:
            self._closed_s = now_s
            close_idle(self._connections, MADE_ROOM)


def check_all(connections: Iterable[Any], now_s: float) -> None:
    """Look at every connection; those that have become websockets are their own business."""
    for connection in list(connections):
        if isinstance(connection, WatchedConnection):
            connection.check(now_s)
