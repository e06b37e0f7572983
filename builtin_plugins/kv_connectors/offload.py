"""Connector `offload`: blocks in host memory, for the lifetime of the engine."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from builtin_plugins.kv_connectors.contract import BlockKey, KVTransferConfig, StoreParts
from builtin_plugins.kv_connectors.directory import BoundedDirectory, PolicyName
from builtin_plugins.kv_connectors.settings import EXTRA, FLAG, read_extra
from core.api import ConfigError, EngineConfig
from core.model_spec.kv import KVLayout, RecurrentState

if TYPE_CHECKING:
    from builtin_plugins.kv_connectors.contract import Block, Bytes

MIN_BYTES: Final = 1 << 12


@dataclass(frozen=True, slots=True)
class Settings:
    """The connector's own settings; named as in vLLM."""

    cpu_bytes_to_use: int = 0
    """Bytes of all ranks together."""
    num_cpu_blocks: int = 0
    """Blocks of all layers on each rank, instead of bytes."""
    block_size: int = 0
    """Tokens of one of `num_cpu_blocks`; 0: the device's block size."""
    eviction_policy: PolicyName = "lru"
    spec_name: Literal["CPUOffloadingSpec"] = "CPUOffloadingSpec"
    """Name of vLLM's offloading spec; only this one is supported."""


class Offload:
    """Connector `offload`."""

    medium: Final = "CPU"

    def __init__(self, config: EngineConfig, settings: KVTransferConfig) -> None:
        self._settings = own = read_extra(Settings, settings)
        parallel = config.parallel
        self._num_ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        if not own.cpu_bytes_to_use and not own.num_cpu_blocks:
            raise ConfigError(f"{FLAG}.{EXTRA} needs 'cpu_bytes_to_use' or 'num_cpu_blocks'.")
        if own.cpu_bytes_to_use and own.num_cpu_blocks:
            raise ConfigError(
                f"{FLAG}.{EXTRA}: got cpu_bytes_to_use and num_cpu_blocks; expected one of them. "
                "Remove the other."
            )
        if own.cpu_bytes_to_use and own.cpu_bytes_to_use < MIN_BYTES:
            raise ConfigError(
                f"{FLAG}.{EXTRA}.cpu_bytes_to_use: got {own.cpu_bytes_to_use}; expected bytes of "
                f"host memory, {MIN_BYTES} or more."
            )
        for name in ("num_cpu_blocks", "block_size"):
            value = getattr(own, name)
            if value < 0:
                raise ConfigError(f"{FLAG}.{EXTRA}.{name}: got {value}; expected more than 0.")

    @staticmethod
    def example_settings(folder: str) -> Mapping[str, Any]:
        """Return settings with a little memory."""
        return {"cpu_bytes_to_use": 1 << 16}

    def directory(self, layout: KVLayout, num_ranks: int) -> BoundedDirectory:
        """Return a directory with this rank's share."""
        group_bytes = [layout.pools[group.pool].block_bytes for group in layout.groups]
        sizes = [group.block_size for group in layout.groups]
        capacity = self._rank_bytes(num_ranks, zip(sizes, group_bytes, strict=True))
        return BoundedDirectory(capacity, group_bytes, self._settings.eviction_policy)

    def store(self, parts: StoreParts) -> HostMemory:
        """Return the store. It allocates memory as it fills."""
        return HostMemory(parts)

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return this rank's share."""
        cache = config.cache
        blocks = list[tuple[int, int]]()
        for spec in (layer.spec for layer in model.kv_layers):
            default = cache.block_size
            if isinstance(spec, RecurrentState):
                default = cache.mamba_block_size
            size = spec.block_size or default
            blocks.append((size, spec.page_bytes(size)))
        return self._rank_bytes(self._num_ranks, blocks)

    def _rank_bytes(self, num_ranks: int, blocks: Iterable[tuple[int, int]]) -> int:
        """Return one rank's bytes. `blocks`: (tokens, bytes) of a block of each group or layer."""
        own = self._settings
        if not own.num_cpu_blocks:
            return own.cpu_bytes_to_use // num_ranks
        return own.num_cpu_blocks * sum(
            -(-(own.block_size or size) // size) * num_bytes for size, num_bytes in blocks
        )


class HostMemory:
    """A store of one buffer for each block. Freed buffers are reused, so pages fault in once."""

    checksum: Literal["sum", "crc32"] = "sum"

    def __init__(self, parts: StoreParts) -> None:
        self._block_bytes = parts.block_bytes
        self._held: dict[BlockKey, tuple[Bytes, bytes]] = {}
        self._free: dict[int, list[Bytes]] = {}
        """Free buffers by size."""
        self._lock = threading.Lock()

    def survey(self) -> Iterable[BlockKey]:
        """Return nothing: the memory starts empty, and no other process writes to it."""
        return ()

    def allocate(self, key: BlockKey) -> Bytes:
        """Return a buffer for a block."""
        return self._allocate(self._block_bytes[key.group])

    def commit(self, key: BlockKey, buffer: Bytes, checksum: bytes) -> None:
        """Store a filled buffer."""
        with self._lock:
            self._held[key] = buffer, checksum

    def locate(self, key: BlockKey) -> tuple[Bytes, bytes]:
        """Return a block's buffer and checksum."""
        with self._lock:
            return self._held[key]

    def _allocate(self, size: int) -> Bytes:
        """Return a buffer. Free buffers of other sizes are released first."""
        if self._free.get(size):
            return self._free[size].pop()
        self._free.clear()
        return np.empty(size, np.uint8)

    def write(self, key: BlockKey, block: Block, checksum: bytes) -> None:
        """Copy a block into the memory."""
        buffer = self.allocate(key)
        for part, piece in zip(block, split_like(buffer, block), strict=True):
            np.copyto(piece, part)
        self.commit(key, buffer, checksum)

    def read(self, key: BlockKey, block: Block) -> bytes:
        """Copy a block out of the memory."""
        buffer, checksum = self.locate(key)
        for part, piece in zip(block, split_like(buffer, block), strict=True):
            np.copyto(part, piece)
        return checksum

    def drop(self, key: BlockKey) -> None:
        """Free a block's buffer."""
        with self._lock:
            buffer, _ = self._held.pop(key, (None, b""))
        if buffer is not None:
            self._reuse(buffer)

    def _reuse(self, buffer: Bytes) -> None:
        self._free.setdefault(buffer.nbytes, []).append(buffer)

    def close(self) -> None:
        """Release all buffers."""
        self._held.clear()
        self._free.clear()


def split_like(buffer: Bytes, block: Block) -> Iterable[Bytes]:
    """Yield consecutive slices of a buffer with the sizes of a block's parts."""
    offset = 0
    for part in block:
        yield buffer[offset : offset + part.nbytes]
        offset += part.nbytes
