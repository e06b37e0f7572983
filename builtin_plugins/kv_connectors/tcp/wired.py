"""Blocks that do not travel over the connection which engines talk over: what has them says where
they lie, and who wants one
reads it there, by a library that can (`Wire`).

Nobody is told when a block has been read. One whose memory is somebody else's by then does not fit
its seal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect
from dataclasses import replace
from typing import Any

import numpy as np

from builtin_plugins.kv_connectors.tcp.asking import Wire
from builtin_plugins.kv_connectors.tcp.connector import Tcp
from builtin_plugins.kv_connectors.tcp.serving import Held
from builtin_plugins.kv_connectors.tcp.store import TcpStore
from core.api import BlockKey, StoreParts


class Wired(Tcp, ABC):
    """What connectors over a wire have in common with `tcp`: offers, the token, the handshake, who
    is asked and how long.
    """

    @abstractmethod
    def wire(self) -> Wire:
        """Return this rank's end. Raises `ConfigError` where there is none."""

    def open(self, parts: StoreParts, address: str | None) -> TcpStore:
        """Return a store whose memory others read, as much of it as the directory hands out."""
        wholes = [parts.layout.pools[group.pool].block_bytes for group in parts.layout.groups]
        stage = max(own / whole for own, whole in zip(parts.block_bytes, wholes, strict=True))
        tensor = self.config.parallel.tensor_parallel_size
        most_bytes = self.directory(parts.layout, tensor).most_bytes
        return WiredStore(
            parts,
            self.token,
            address,
            self.own.peer_timeout_s,
            self.wire(),
            int(most_bytes * stage),
        )


class WiredStore(TcpStore):
    """Keeps blocks in one stretch of memory, which is made known once."""

    def __init__(
        self,
        parts: StoreParts,
        token: bytes,
        address: str | None,
        timeout_s: float,
        wire: Wire,
        num_bytes: int,
    ) -> None:
        self._arena = Arena(num_bytes)
        self._landed = np.empty(max(parts.block_bytes), np.uint8)
        for memory in (self._arena.memory, self._landed):
            if memory.nbytes:
                wire.register(memory)
        facts = {**parts.facts, "kv_connector": wire.name}
        self._wired = wire
        super().__init__(replace(parts, facts=facts), token, address, timeout_s, wire)

    def _room(self, size: int) -> np.ndarray[Any, Any]:
        with self._lock:
            return self._arena.take(size)

    def _reuse(self, buffer: np.ndarray[Any, Any]) -> None:
        with self._lock:
            self._arena.give_back(buffer)

    def lend(self, key: BlockKey) -> Held | None:
        """Return where a block is. It is read there, or what is there then."""
        with self._lock:
            return self._held.get(key)

    def give_back(self, buffer: np.ndarray[Any, Any]) -> None:
        """Nothing was lent."""

    def _landing(self, size: int) -> np.ndarray[Any, Any]:
        return self._landed[:size]

    def close(self) -> None:
        """Hang up, and let go of the memory."""
        super().close()
        self._wired.close()


class Arena:
    """One stretch of memory, given out in pieces; free pieces side by side are one."""

    def __init__(self, num_bytes: int) -> None:
        self.memory = np.empty(num_bytes, np.uint8)
        self._free = [(0, num_bytes)]
        """Where free pieces begin, and where they end, in order."""

    def take(self, size: int) -> np.ndarray[Any, Any]:
        """Return a piece. Raises `MemoryError` where none is large enough."""
        for place, (start, end) in enumerate(self._free):
            if end - start >= size:
                self._free[place : place + 1] = [(start + size, end)] if end - start > size else []
                return self.memory[start : start + size]
        raise MemoryError(f"no {size} bytes in one piece are free in the memory for other engines")

    def give_back(self, piece: np.ndarray[Any, Any]) -> None:
        """A piece is free."""
        start = piece.ctypes.data - self.memory.ctypes.data
        end = start + piece.nbytes
        place = bisect(self._free, (start, end))
        first = last = place
        if place and self._free[place - 1][1] == start:
            first = place - 1
            start = self._free[place - 1][0]
        if place < len(self._free) and self._free[place][0] == end:
            last = place + 1
            end = self._free[place][1]
        self._free[first:last] = [(start, end)]
