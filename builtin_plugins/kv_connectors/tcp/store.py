"""A rank's store: blocks in host memory for other engines, and connections to theirs."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import zmq

from builtin_plugins.kv_connectors.contract import BlockKey, StoreParts
from builtin_plugins.kv_connectors.offload import HostMemory
from builtin_plugins.kv_connectors.tcp.client import Connection, Transport
from builtin_plugins.kv_connectors.tcp.protocol import PeerError, address_of, as_json
from builtin_plugins.kv_connectors.tcp.server import BlockServer, StoredBlock

if TYPE_CHECKING:
    from builtin_plugins.kv_connectors.contract import Bytes

RETRY_S: Final = 5.0
"""Pause before an engine that failed is tried again."""
NO_WAIT_S: Final = 1.0
"""After a missing block, how long none is waited for: the following ones are of its request."""


class EngineAddress(msgspec.Struct, array_like=True, frozen=True):
    """Address of an engine with blocks."""

    engine_id: str
    host: str
    port: int
    """Port of its first rank."""


class ServedMemory(HostMemory):
    """Host memory with blocks that may be dropped while they are being sent."""

    def __init__(self, parts: StoreParts) -> None:
        super().__init__(parts)
        self._in_use: Counter[int] = Counter()
        """Senders of a buffer, by `id`."""

    def acquire(self, key: BlockKey) -> StoredBlock | None:
        """Return a block. Its buffer is not reused before `release`."""
        with self._lock:
            stored = self._held.get(key)
            if stored is not None:
                self._in_use[id(stored[0])] += 1
            return stored

    def release(self, buffer: Bytes) -> None:
        """Release a buffer after it was sent."""
        with self._lock:
            self._in_use[id(buffer)] -= 1
            if not self._in_use[id(buffer)]:
                del self._in_use[id(buffer)]

    def _reuse(self, buffer: Bytes) -> None:
        with self._lock:
            if id(buffer) not in self._in_use:
                super()._reuse(buffer)


class TcpStore(ServedMemory):
    """Stores, serves and fetches blocks."""

    def __init__(
        self,
        parts: StoreParts,
        token: bytes,
        address: str | None,
        timeout_s: float,
        transport: Transport | None = None,
    ) -> None:
        """`address`: to listen on; None: serve no blocks.

        Raises `zmq.ZMQError` if the address cannot be bound.
        """
        super().__init__(parts)
        self._rank = parts.rank
        self._facts = parts.facts
        self._token = token
        self._timeout_s = timeout_s
        self._max_block_bytes = max(parts.block_bytes)
        self._transport = transport
        metadata = b"" if transport is None else transport.metadata()
        facts = as_json(parts.facts)
        self._server = None
        if address is not None:
            self._server = BlockServer(address, token, facts, self, metadata)
        self._context: zmq.Context[Any] = zmq.Context()
        self._connections: dict[bytes, Connection] = {}
        self._paused: dict[bytes, tuple[float, PeerError]] = {}
        """When a failed engine is tried again, by the monotonic clock, and its error."""
        self._no_wait_until: dict[bytes, float] = {}
        """Until when no block of an engine is waited for."""

    def fetch(self, source: bytes, key: BlockKey) -> StoredBlock:
        """Fetch a block from another engine. Raises `PeerError`."""
        size = self._block_bytes[key.group]
        waits = time.monotonic() >= self._no_wait_until.get(source, 0.0)
        try:
            stored = self._connection(source).get(
                key, size, waits=waits, buffer=self._receive_buffer(size)
            )
        except PeerError as error:
            broken = self._connections.pop(source, None)
            if broken is not None:
                broken.close()
            if source not in self._paused:
                self._paused[source] = time.monotonic() + RETRY_S, error
            raise
        if stored is None:
            self._no_wait_until[source] = time.monotonic() + NO_WAIT_S
            raise PeerError("the other engine does not have the block any more")
        return stored

    def _receive_buffer(self, size: int) -> Bytes | None:
        """Return the destination of a transport's read; None without a transport."""
        return None

    def _connection(self, source: bytes) -> Connection:
        until_s, error = self._paused.pop(source, (0.0, PeerError()))
        if time.monotonic() < until_s:
            self._paused[source] = until_s, error
            raise type(error)(*error.args)
        if source not in self._connections:
            engine = msgspec.msgpack.decode(source, type=EngineAddress)
            self._connections[source] = Connection(
                self._context,
                address_of(engine.host, engine.port + self._rank),
                self._token,
                self._facts,
                max_block_bytes=self._max_block_bytes,
                timeout_s=self._timeout_s,
                transport=self._transport,
            )
        return self._connections[source]

    def close(self) -> None:
        """Close the server and all connections."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections.values():
            connection.close()
        self._context.destroy(linger=0)
        super().close()
