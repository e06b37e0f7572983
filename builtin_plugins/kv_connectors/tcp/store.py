"""A rank's half: blocks in host memory that others may fetch, and connections by which theirs are
fetched.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import zmq

from builtin_plugins.kv_connectors.offload import HostMemory
from builtin_plugins.kv_connectors.tcp.asking import Connection, Wire
from builtin_plugins.kv_connectors.tcp.protocol import PeerError, address_of, as_json
from builtin_plugins.kv_connectors.tcp.serving import BlockServer, Held
from core.api import BlockKey, StoreParts

if TYPE_CHECKING:
    from core.contracts.kv_connectors import Bytes

REST_S: Final = 5.0
"""For which an engine that did not answer is not asked."""
IMPATIENT_S: Final = 1.0
"""After a block that did not come none is waited for: those behind it are of the same request."""


class Source(msgspec.Struct, array_like=True, frozen=True):
    """An engine that has blocks."""

    engine_id: str
    host: str
    port: int
    """Of its first rank."""


class ServedMemory(HostMemory):
    """Blocks that may be on their way to somebody when they are dropped."""

    def __init__(self, parts: StoreParts) -> None:
        super().__init__(parts)
        self._lent: Counter[int] = Counter()

    def lend(self, key: BlockKey) -> Held | None:
        """Return a block whose memory is not used for another until it is given back."""
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                self._lent[id(held[0])] += 1
            return held

    def give_back(self, buffer: Bytes) -> None:
        """It is sent."""
        with self._lock:
            self._lent[id(buffer)] -= 1
            if not self._lent[id(buffer)]:
                del self._lent[id(buffer)]

    def _reuse(self, buffer: Bytes) -> None:
        with self._lock:
            if id(buffer) not in self._lent:
                super()._reuse(buffer)


class TcpStore(ServedMemory):
    """Keeps, serves and fetches.

    What it keeps is dropped as the directory says, whoever may still want it.
    """

    def __init__(
        self,
        parts: StoreParts,
        token: bytes,
        address: str | None,
        timeout_s: float,
        wire: Wire | None = None,
    ) -> None:
        """`address`: to listen on; None: nobody may ask.

        Raises `zmq.ZMQError` where nobody can listen there.
        """
        super().__init__(parts)
        self._rank = parts.rank
        self._facts = parts.facts
        self._token = token
        self._timeout_s = timeout_s
        self._most_bytes = max(parts.block_bytes)
        self._wire = wire
        introduction = b"" if wire is None else wire.introduce()
        facts = as_json(parts.facts)
        self._server = (
            None if address is None else BlockServer(address, token, facts, self, introduction)
        )
        self._context: zmq.Context[Any] = zmq.Context()
        self._connections: dict[bytes, Connection] = {}
        self._resting: dict[bytes, tuple[float, PeerError]] = {}
        """Engines that are not asked until a time, by the monotonic clock, and why."""
        self._impatient: dict[bytes, float] = {}
        """Engines of which nothing is waited for until a time."""

    def fetch(self, source: bytes, key: BlockKey) -> Held:
        """Fetch a block from another engine. Raises `PeerError`."""
        size = self._block_bytes[key.group]
        waits = time.monotonic() >= self._impatient.get(source, 0.0)
        try:
            held = self._connection(source).get(key, size, waits=waits, landing=self._landing(size))
        except PeerError as error:
            if (broken := self._connections.pop(source, None)) is not None:
                broken.close()
            if source not in self._resting:
                self._resting[source] = time.monotonic() + REST_S, error
            raise
        if held is None:
            self._impatient[source] = time.monotonic() + IMPATIENT_S
            raise PeerError("the other engine does not have the block any more")
        return held

    def _landing(self, size: int) -> Bytes | None:
        """Return where a wire reads a block to; without one there is no such place."""
        return None

    def _connection(self, source: bytes) -> Connection:
        until_s, why = self._resting.pop(source, (0.0, PeerError()))
        if time.monotonic() < until_s:
            self._resting[source] = until_s, why
            raise type(why)(*why.args)
        if source not in self._connections:
            where = msgspec.msgpack.decode(source, type=Source)
            address = address_of(where.host, where.port + self._rank)
            self._connections[source] = Connection(
                self._context, address, self._token, self._facts,
                most_bytes=self._most_bytes, timeout_s=self._timeout_s, wire=self._wire,
            )  # fmt: skip
        return self._connections[source]

    def close(self) -> None:
        """Hang up on everybody."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections.values():
            connection.close()
        self._context.destroy(linger=0)
        super().close()
