"""Keeps blocks in a dictionary until it is full."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, Literal

from core.api import BlockKey, EngineConfig, KVTransferConfig, StoreParts


class Acme:
    """Makes both halves."""

    def __init__(self, config: EngineConfig, settings: KVTransferConfig) -> None:
        """Take its own settings."""
        self._most_bytes = int(settings.kv_connector_extra_config.get("most_bytes", 1 << 30))

    @staticmethod
    def trial(folder: str) -> Mapping[str, Any]:
        """Return settings to try it with."""
        return {"most_bytes": 1 << 20}

    def directory(self, layout: Any, num_ranks: int) -> Directory:
        """Return the half beside the scheduler."""
        sizes = [layout.pools[group.pool].block_bytes for group in layout.groups]
        return Directory(self._most_bytes // num_ranks, sizes)

    def store(self, parts: StoreParts) -> Store:
        """Return the half on one rank."""
        return Store()

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return what it may take of a rank's memory."""
        return self._most_bytes


class Directory:
    """Knows what is stored; where there is no room, nothing more is."""

    def __init__(self, most_bytes: int, sizes: list[int]) -> None:
        """Take the bytes of a block of each group."""
        self.most_bytes = most_bytes
        self.num_bytes = 0
        self._sizes = sizes
        self._known: dict[BlockKey, bool] = {}

    def holds(self, key: BlockKey) -> bool:
        """Say whether a block was stored."""
        return self._known.get(key, False)

    def admit(self, key: BlockKey, pinned: Container[BlockKey]) -> list[BlockKey] | None:
        """Make room, if there is any."""
        size = self._sizes[key.group]
        if key in self._known or self.num_bytes + size > self.most_bytes:
            return None
        self._known[key] = False
        self.num_bytes += size
        return []

    def stored(self, key: BlockKey) -> None:
        """It is there."""
        self._known[key] = True

    def used(self, key: BlockKey) -> None:
        """Nothing is let go, so it does not matter."""

    def lost(self, key: BlockKey) -> None:
        """It is not there."""
        if self._known.pop(key, None) is not None:
            self.num_bytes -= self._sizes[key.group]


class Store:
    """Keeps copies."""

    seal: Literal["sum", "crc32"] = "sum"

    def __init__(self) -> None:
        """Begin with nothing."""
        self._blocks: dict[BlockKey, tuple[list[Any], bytes]] = {}

    def survey(self) -> Iterable[BlockKey]:
        """Return nothing: it had nothing before."""
        return ()

    def write(self, key: BlockKey, block: Any, seal: bytes) -> None:
        """Keep a block."""
        self._blocks[key] = [part.copy() for part in block], seal

    def read(self, key: BlockKey, block: Any) -> bytes:
        """Fill a block."""
        kept, seal = self._blocks[key]
        for part, own in zip(block, kept, strict=True):
            part[:] = own
        return seal

    def drop(self, key: BlockKey) -> None:
        """Forget a block."""
        self._blocks.pop(key, None)

    def close(self) -> None:
        """Forget all."""
        self._blocks.clear()
