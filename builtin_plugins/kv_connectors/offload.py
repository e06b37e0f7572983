"""Host memory behind the cache: blocks that the device has no room for, as long as the engine
lives.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from builtin_plugins.kv_connectors.bounded import BoundedDirectory
from builtin_plugins.kv_connectors.eviction import Name
from builtin_plugins.kv_connectors.settings import EXTRA, FLAG, read_extra
from core.api import BlockKey, ConfigError, EngineConfig, KVLayout, KVTransferConfig, StoreParts
from core.model_spec.kv import RecurrentState

if TYPE_CHECKING:
    from core.contracts.kv_connectors import Block, Bytes

LEAST_BYTES: Final = 1 << 12


@dataclass(frozen=True, slots=True)
class Settings:
    """The connector's own; names as in vLLM where it has any."""

    cpu_bytes_to_use: int = 0
    """Of all ranks together."""
    num_cpu_blocks: int = 0
    """Or room for so many blocks of all layers, on each rank,"""
    block_size: int = 0
    """of so many tokens; 0: as on the device, in whose blocks everything moves."""
    eviction_policy: Name = "lru"
    spec_name: Literal["CPUOffloadingSpec"] = "CPUOffloadingSpec"
    """What else vLLM has there is not here."""


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
                f"{FLAG}.{EXTRA}: cpu_bytes_to_use and num_cpu_blocks both say how much it is; "
                "leave one out."
            )
        if own.cpu_bytes_to_use and own.cpu_bytes_to_use < LEAST_BYTES:
            raise ConfigError(
                f"{FLAG}.{EXTRA}.cpu_bytes_to_use {own.cpu_bytes_to_use} holds no block; state "
                "bytes of host memory."
            )
        for name in ("num_cpu_blocks", "block_size"):
            if getattr(own, name) < 0:
                raise ConfigError(
                    f"{FLAG}.{EXTRA}.{name} must be more than 0, not {getattr(own, name)}."
                )

    @staticmethod
    def trial(folder: str) -> Mapping[str, Any]:
        """Some memory."""
        return {"cpu_bytes_to_use": 1 << 16}

    def directory(self, layout: KVLayout, num_ranks: int) -> BoundedDirectory:
        """Return a directory of this rank's share, however many stages the layers are split into."""
        group_bytes = [layout.pools[group.pool].block_bytes for group in layout.groups]
        sizes = [group.block_size for group in layout.groups]
        most_bytes = self._most_bytes(num_ranks, zip(sizes, group_bytes, strict=True))
        return BoundedDirectory(most_bytes, group_bytes, self._settings.eviction_policy)

    def store(self, parts: StoreParts) -> HostMemory:
        """Return the memory, which is taken as it fills."""
        return HostMemory(parts)

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return this rank's share."""
        cache = config.cache
        blocks = list[tuple[int, int]]()
        for spec in (layer.spec for layer in model.kv_layers):
            usual = cache.mamba_block_size if isinstance(spec, RecurrentState) else cache.block_size
            size = spec.block_size or usual
            blocks.append((size, spec.page_bytes(size)))
        return self._most_bytes(self._num_ranks, blocks)

    def _most_bytes(self, num_ranks: int, blocks: Iterable[tuple[int, int]]) -> int:
        """Return one rank's share.

        `blocks`: tokens and bytes of a block of each group or layer there.
        """
        own = self._settings
        if not own.num_cpu_blocks:
            return own.cpu_bytes_to_use // num_ranks
        return own.num_cpu_blocks * sum(
            -(-(own.block_size or size) // size) * num_bytes for size, num_bytes in blocks
        )


class HostMemory:
    """A buffer for each block; those of blocks that have gone are used again, so that memory is
    touched once.
    """

    seal: Literal["sum", "crc32"] = "sum"

    def __init__(self, parts: StoreParts) -> None:
        self._block_bytes = parts.block_bytes
        self._held: dict[BlockKey, tuple[Bytes, bytes]] = {}
        self._free: dict[int, list[Bytes]] = {}
        """By size."""
        self._lock = threading.Lock()

    def survey(self) -> Iterable[BlockKey]:
        """Return nothing: it had nothing before, and nobody else writes to it."""
        return ()

    def place(self, key: BlockKey) -> Bytes:
        """Return memory for a block."""
        return self._room(self._block_bytes[key.group])

    def keep(self, key: BlockKey, place: Bytes, seal: bytes) -> None:
        """Have it."""
        with self._lock:
            self._held[key] = place, seal

    def held(self, key: BlockKey) -> tuple[Bytes, bytes]:
        """Return where it lies."""
        with self._lock:
            return self._held[key]

    def _room(self, size: int) -> Bytes:
        """Return memory for a block: where there are blocks of several sizes, that of others is
        given back first.
        """
        if self._free.get(size):
            return self._free[size].pop()
        self._free.clear()
        return np.empty(size, np.uint8)

    def write(self, key: BlockKey, block: Block, seal: bytes) -> None:
        """Copy a block."""
        place = self.place(key)
        for part, piece in zip(block, parts_of(place, block), strict=True):
            np.copyto(piece, part)
        self.keep(key, place, seal)

    def read(self, key: BlockKey, block: Block) -> bytes:
        """Copy it back."""
        place, seal = self.held(key)
        for part, piece in zip(block, parts_of(place, block), strict=True):
            np.copyto(part, piece)
        return seal

    def drop(self, key: BlockKey) -> None:
        """Use its memory for another."""
        with self._lock:
            buffer, _ = self._held.pop(key, (None, b""))
        if buffer is not None:
            self._reuse(buffer)

    def _reuse(self, buffer: Bytes) -> None:
        self._free.setdefault(buffer.nbytes, []).append(buffer)

    def close(self) -> None:
        """Give all of it back."""
        self._held.clear()
        self._free.clear()


def parts_of(buffer: Bytes, block: Block) -> Iterable[Bytes]:
    """Yield a buffer in pieces as long as the parts of a block."""
    at = 0
    for part in block:
        yield buffer[at : at + part.nbytes]
        at += part.nbytes
