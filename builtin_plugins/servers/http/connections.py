"""Connections with limits: oversized heads, slow requests, stalled readers, idle connections.

All connections are checked once per second; streamed chunks cost nothing.
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
from builtin_plugins.servers.http.http10 import end_by_closing
from builtin_plugins.servers.http.limits import Limits

log = logging.getLogger(__name__)

_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
NUM_CLOSED: Final = 8
"""Idle connections to close when no new ones can be accepted."""
LOG_INTERVAL_S: Final = 60.0
"""Shortest time between two log lines about failed accepts, in seconds."""
SEND_BUFFER_BYTES: Final = 128 * 1024
"""Size of the system's send buffer per connection, instead of megabytes."""


class WatchedConnection(AutoHTTPProtocol):  # type: ignore[valid-type, misc]
    """uvicorn's protocol, with either parser, and limits."""

    limits: ClassVar[Limits]

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, or answer that there are too many."""
        super().connection_made(transport)
        self._since_s = self.loop.time()
        """Time of the last start or end of a request."""
        self._moved_s = self._since_s
        """Time of the last progress in sending."""
        self._head_bytes = 0
        self._unsent_bytes = 0
        self._was_between = True
        self._is_whole = False
        self._is_refused = False
        if len(self.connections) > self.limits.connections:
            close_idle(each for each in self.connections if each is not self)
            num_open = sum(not each.transport.is_closing() for each in self.connections)
            if num_open > self.limits.connections + self.limits.spare_connections:
                self._end(self.limits.too_many_connections())

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; refuse an unfinished head that is too long."""
        if self._is_refused or self.transport.is_closing():
            return
        cycle = self.cycle
        between = self._is_between
        if self.is_idle:
            self._since_s = self.loop.time()  # the next request starts
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
        """Called by httptools before the body."""
        self._is_whole = False
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before and self.scope["http_version"] == "1.0":
            end_by_closing(self.cycle)  # its task has not started

    def on_message_complete(self) -> None:
        """Called by httptools at the end of a request."""
        self._is_whole = True
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Called when the send buffer is full: start to watch for progress."""
        super().pause_writing()
        self._moved_s = self.loop.time()
        self._unsent_bytes = 0

    def check(self, now_s: float) -> None:
        """Close the connection if its client is too slow."""
        between = self._is_between
        if between and not self._was_between:
            self._since_s = now_s
        self._was_between = between
        waited_s = now_s - self._since_s
        max_s = self.limits.read_timeout_s
        if self._is_stuck(now_s):
            log.info("closed a connection: nothing read for %g s", self.limits.stall_timeout_s)
            self.transport.abort()
        elif self.transport.is_closing():
            pass
        elif self._is_refused:
            self.transport.close()
        elif between:
            if waited_s > max_s and not self.is_idle:
                self._end(self.limits.too_slow())
        elif self._is_arriving and waited_s > max_s + 1:  # the route did not answer in time
            self.transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether a request was answered and no other has started; uvicorn limits the idle time."""
        return self.cycle is not None and self._is_between and not self._head_bytes

    @property
    def may_close(self) -> bool:
        """Whether the connection may be closed: it has no request and no answer."""
        return self._is_between and not (
            self._head_bytes or self._is_refused or self.transport.is_closing()
        )

    @property
    def idle_since_s(self) -> float:
        """Time of the last request's end, or of the accept."""
        return float(self._since_s)

    @property
    def _is_arriving(self) -> bool:
        return bool(self.cycle.more_body) and not self._is_whole

    @property
    def _is_between(self) -> bool:
        """Whether the connection waits for the next request's head."""
        cycle = self.cycle
        return cycle is None or bool(cycle.response_complete and not self._is_arriving)

    def _is_stuck(self, now_s: float) -> bool:
        """Return whether the client has read nothing of a waiting answer for too long."""
        unsent = int(self.transport.get_write_buffer_size())
        done = self.transport.is_closing() or self.cycle is None or self.cycle.response_complete
        if not unsent or unsent < self._unsent_bytes or not (done or self.flow.write_paused):
            self._moved_s = now_s
        self._unsent_bytes = unsent
        return bool(now_s - self._moved_s > self.limits.stall_timeout_s)

    def _end(self, answer: ErrorAnswer) -> None:
        """Answer without a parsed request, and close later so that the answer is not lost."""
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
    """Return a connection class with these limits."""
    return type("Connection", (WatchedConnection,), {"limits": limits})


def close_idle(connections: Iterable[Any], count: int = 1) -> None:
    """Close the connections that have been idle for longest."""
    idle = [each for each in connections if isinstance(each, WatchedConnection) and each.may_close]
    for each in heapq.nsmallest(count, idle, key=lambda each: each.idle_since_s):
        each.transport.close()


class AcceptErrorHandler:
    """Exception handler of the event loop for failed accepts: closes idle connections, and logs
    once per minute.
    """

    def __init__(self, connections: Iterable[Any]) -> None:
        self._connections = connections
        self._num_since = 0
        self._logged_s = float("-inf")
        self._closed_s = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error. The loop retries after a second, and reports each waiting connection."""
        error = context.get("exception")
        if (
            isinstance(error, OSError)
            and error.errno == errno.EBADF
            and "_start_serving" in str(context.get("handle"))
        ):
            return  # asyncio retries although the server has been closed
        if not isinstance(error, OSError) or error.errno not in _NO_ROOM or "socket" not in context:
            loop.default_exception_handler(context)
            return
        now_s = loop.time()
        self._num_since += 1
        if now_s - self._logged_s > LOG_INTERVAL_S:
            log.warning("cannot accept connections: %s (%d times)", error.strerror, self._num_since)
            self._logged_s = now_s
            self._num_since = 0
        if now_s - self._closed_s > 0.5:
            self._closed_s = now_s
            close_idle(self._connections, NUM_CLOSED)


def check_all(connections: Iterable[Any], now_s: float) -> None:
    """Check every connection that is not a websocket."""
    for connection in list(connections):
        if isinstance(connection, WatchedConnection):
            connection.check(now_s)
