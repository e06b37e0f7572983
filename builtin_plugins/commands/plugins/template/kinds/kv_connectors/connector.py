"""A KV connector that keeps blocks in a dictionary until it is full."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, Literal

from builtin_plugins.kv_connectors.api import BlockKey, KVTransferConfig, StoreParts
from core.api import EngineConfig


class Acme:
    """Creates the directory and the stores."""

    def __init__(self, config: EngineConfig, settings: KVTransferConfig) -> None:
        """Read the connector's settings."""
        self._capacity_bytes = int(
            settings.kv_connector_extra_config.get("capacity_bytes", 1 << 30)
        )

    @staticmethod
    def example_settings(folder: str) -> Mapping[str, Any]:
        """Return settings for the conformance suite."""
        return {"capacity_bytes": 1 << 20}

    def directory(self, layout: Any, num_ranks: int) -> Directory:
        """Return the directory for the scheduler."""
        sizes = [layout.pools[group.pool].block_bytes for group in layout.groups]
        return Directory(self._capacity_bytes // num_ranks, sizes)

    def store(self, parts: StoreParts) -> Store:
        """Return the store for one rank."""
        return Store()

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return the maximum host memory per rank in bytes."""
        return self._capacity_bytes


class Directory:
    """Keys of the stored blocks. Rejects new blocks when full."""

    def __init__(self, capacity_bytes: int, sizes: list[int]) -> None:
        """Initialize with the block sizes of each group in bytes."""
        self.capacity_bytes = capacity_bytes
        self.num_bytes = 0
        self._sizes = sizes
        self._known: dict[BlockKey, bool] = {}

    def holds(self, key: BlockKey) -> bool:
        """Return whether a block is stored."""
        return self._known.get(key, False)

    def admit(self, key: BlockKey, pinned: Container[BlockKey]) -> list[BlockKey] | None:
        """Reserve memory for a block; return the evicted keys, or None when full."""
        size = self._sizes[key.group]
        if key in self._known or self.num_bytes + size > self.capacity_bytes:
            return None
        self._known[key] = False
        self.num_bytes += size
        return []

    def mark_stored(self, key: BlockKey) -> None:
        """Mark a block as stored."""
        self._known[key] = True

    def touch(self, key: BlockKey) -> None:
        """Do nothing: this connector never evicts."""

    def discard(self, key: BlockKey) -> None:
        """Remove a block."""
        if self._known.pop(key, None) is not None:
            self.num_bytes -= self._sizes[key.group]


class Store:
    """Block copies of one rank."""

    checksum: Literal["sum", "crc32"] = "sum"

    def __init__(self) -> None:
        """Start empty."""
        self._blocks: dict[BlockKey, tuple[list[Any], bytes]] = {}

    def survey(self) -> Iterable[BlockKey]:
        """Return no keys: nothing persists between starts."""
        return ()

    def write(self, key: BlockKey, block: Any, checksum: bytes) -> None:
        """Store a copy of a block."""
        self._blocks[key] = [part.copy() for part in block], checksum

    def read(self, key: BlockKey, block: Any) -> bytes:
        """Copy a stored block into `block`; return its checksum."""
        stored, checksum = self._blocks[key]
        for part, source in zip(block, stored, strict=True):
            part[:] = source
        return checksum

    def drop(self, key: BlockKey) -> None:
        """Remove a block."""
        self._blocks.pop(key, None)

    def close(self) -> None:
        """Remove all blocks."""
        self._blocks.clear()
