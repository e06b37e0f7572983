"""Base of connectors that read blocks out of a peer's memory, for example by RDMA.

The `tcp` connection only negotiates: the server sends a block's address, and the client reads it
with a `Transport`. The server does not learn when a read has ended. A block that was replaced
meanwhile fails its checksum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect
from dataclasses import replace
from typing import Any

import numpy as np

from builtin_plugins.kv_connectors.contract import BlockKey, StoreParts
from builtin_plugins.kv_connectors.tcp.client import Transport
from builtin_plugins.kv_connectors.tcp.connector import Tcp
from builtin_plugins.kv_connectors.tcp.server import StoredBlock
from builtin_plugins.kv_connectors.tcp.store import TcpStore


class TransportConnector(Tcp, ABC):
    """Base class: like `tcp` (offers, token, handshake, timeouts), with another transport."""

    @abstractmethod
    def transport(self) -> Transport:
        """Return this rank's transport. Raises `ConfigError` if it is unavailable."""

    def open(self, parts: StoreParts, address: str | None) -> TcpStore:
        """Return a store with memory that peers read, as large as the directory's limit."""
        full_bytes = [parts.layout.pools[group.pool].block_bytes for group in parts.layout.groups]
        stage_share = max(
            own / full for own, full in zip(parts.block_bytes, full_bytes, strict=True)
        )
        tensor = self.config.parallel.tensor_parallel_size
        capacity = self.directory(parts.layout, tensor).capacity_bytes
        return TransportStore(
            parts,
            self.token,
            address,
            self.own.peer_timeout_s,
            self.transport(),
            int(capacity * stage_share),
        )


class TransportStore(TcpStore):
    """Stores blocks in one registered arena."""

    def __init__(
        self,
        parts: StoreParts,
        token: bytes,
        address: str | None,
        timeout_s: float,
        transport: Transport,
        num_bytes: int,
    ) -> None:
        self._arena = Arena(num_bytes)
        self._received = np.empty(max(parts.block_bytes), np.uint8)
        for memory in (self._arena.memory, self._received):
            if memory.nbytes:
                transport.register(memory)
        facts = {**parts.facts, "kv_connector": transport.name}
        self._reader = transport
        super().__init__(replace(parts, facts=facts), token, address, timeout_s, transport)

    def _allocate(self, size: int) -> np.ndarray[Any, Any]:
        with self._lock:
            return self._arena.allocate(size)

    def _reuse(self, buffer: np.ndarray[Any, Any]) -> None:
        with self._lock:
            self._arena.free(buffer)

    def acquire(self, key: BlockKey) -> StoredBlock | None:
        """Return a block. Its memory may be reused while a peer reads it."""
        with self._lock:
            return self._held.get(key)

    def release(self, buffer: np.ndarray[Any, Any]) -> None:
        """Do nothing: `acquire` pins no buffer."""

    def _receive_buffer(self, size: int) -> np.ndarray[Any, Any]:
        return self._received[:size]

    def close(self) -> None:
        """Close the connections and the transport."""
        super().close()
        self._reader.close()


class Arena:
    """One contiguous buffer, allocated first-fit in slices."""

    def __init__(self, num_bytes: int) -> None:
        self.memory = np.empty(num_bytes, np.uint8)
        self._free = [(0, num_bytes)]
        """(start, end) of free ranges, sorted and coalesced."""

    def allocate(self, size: int) -> np.ndarray[Any, Any]:
        """Return a slice. Raises `MemoryError` if no free range is large enough."""
        for index, (start, end) in enumerate(self._free):
            if end - start >= size:
                rest = [(start + size, end)] if end - start > size else []
                self._free[index : index + 1] = rest
                return self.memory[start : start + size]
        raise MemoryError(f"no {size} contiguous bytes are free in the memory for other engines")

    def free(self, piece: np.ndarray[Any, Any]) -> None:
        """Free a slice, and merge it with adjacent free ranges."""
        start = piece.ctypes.data - self.memory.ctypes.data
        end = start + piece.nbytes
        index = bisect(self._free, (start, end))
        first = index
        last = index
        if index and self._free[index - 1][1] == start:
            first = index - 1
            start = self._free[index - 1][0]
        if index < len(self._free) and self._free[index][0] == end:
            last = index + 1
            end = self._free[index][1]
        self._free[first:last] = [(start, end)]
