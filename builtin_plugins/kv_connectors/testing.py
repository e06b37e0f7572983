"""A plugin with a connector that injects faults into another one.

`{"kv_connector": "faulty", "kv_connector_extra_config": {"over": "offload", "fault": "corrupting",
"settings": {...}}}`, the settings being those of `over`. Whatever goes wrong, the tokens are those
without a connector.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.kv_connectors.contract import (
    BlockKey,
    KVDirectory,
    KVStore,
    KVTransferConfig,
    StoreParts,
)
from core.api import ConfigError, EngineConfig, Entry, hookimpl
from core.api.plugins import load_plan, make_plan

if TYPE_CHECKING:
    from builtin_plugins.kv_connectors.contract import Block, Bytes

FAULTS: Final = (
    *("none", "slow", "hanging", "hanging_writes", "failing", "failing_writes"),
    *("partial", "corrupting", "vanishing", "lying"),
)
SLOW_S: Final = 0.02


@hookimpl
def engine_kv_connectors() -> list[Entry]:
    """Return the connector that has faults."""
    return [
        Entry(
            "faulty",
            "builtin_plugins.kv_connectors.testing:Faulty",
            "another connector, with a fault",
        )
    ]


class Faulty:
    """Connector `faulty`."""

    def __init__(self, config: EngineConfig, settings: KVTransferConfig) -> None:
        extra = settings.kv_connector_extra_config
        self._fault = extra.get("fault", "none")
        over = extra.get("over", "offload")
        if self._fault not in FAULTS:
            raise ConfigError(f"there is no fault {self._fault!r}; there are {', '.join(FAULTS)}.")
        registry = load_plan(make_plan(extra.get("plugins", ())))
        target = registry.load(registry.choose("kv_connectors", over))
        self._inner = target(
            config, replace(settings, kv_connector_extra_config=extra.get("settings", {}))
        )

    @staticmethod
    def example_settings(folder: str) -> Mapping[str, Any]:
        """Host memory without a fault."""
        return {"settings": {"cpu_bytes_to_use": 1 << 16}}

    def directory(self, layout: Any, num_ranks: int) -> KVDirectory:
        """Return the other one's."""
        made: KVDirectory = self._inner.directory(layout, num_ranks)
        return made

    def store(self, parts: StoreParts) -> KVStore:
        """Return the other one's, with the fault."""
        inner = self._inner.store(parts)
        return (
            FaultyMemory(inner, self._fault)
            if hasattr(inner, "locate")
            else FaultyStore(inner, self._fault)
        )

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return what the other one takes."""
        taken: int = self._inner.host_bytes(model, config)
        return taken


class FaultyStore:
    """A store over another.

    What it says it has written, and what it reads, is as wrong as the fault has it.
    """

    def __init__(self, inner: Any, fault: str) -> None:
        self._inner = inner
        self._fault = fault
        self.checksum = inner.checksum
        self.closed = threading.Event()
        """Ends what hangs."""

    def survey(self) -> Iterable[BlockKey]:
        """Return what there is."""
        found: Iterable[BlockKey] = self._inner.survey()
        return found

    def write(self, key: BlockKey, block: Block, checksum: bytes) -> None:
        """Write, or only say so."""
        if self._may_write():
            self._inner.write(key, block, checksum)

    def _may_write(self) -> bool:
        if self._fault == "failing_writes":
            raise OSError(28, "No space left on device")
        if self._fault in ("slow", "hanging_writes"):
            self.closed.wait(SLOW_S if self._fault == "slow" else None)
        return self._fault != "lying"

    def read(self, key: BlockKey, block: Block) -> bytes:
        """Read as the fault has it."""
        self._before_reading(key)
        if self._fault == "partial":
            block[0][: len(block[0]) // 2] = 7
            raise OSError("the connection broke")
        checksum: bytes = self._inner.read(key, block)
        if self._fault == "corrupting":
            block[-1][len(block[-1]) // 3] ^= 1
        return checksum

    def _before_reading(self, key: BlockKey) -> None:
        if self._fault in ("slow", "hanging"):
            self.closed.wait(SLOW_S if self._fault == "slow" else None)
        if self._fault == "failing":
            raise OSError(5, "Input/output error")
        if self._fault == "vanishing":
            self._inner.drop(key)

    def drop(self, key: BlockKey) -> None:
        """Drop."""
        self._inner.drop(key)

    def close(self) -> None:
        """Let what hangs end."""
        self.closed.set()
        self._inner.close()


class FaultyMemory(FaultyStore):
    """The same over a store with blocks in memory."""

    def allocate(self, key: BlockKey) -> Bytes:
        """Return the other one's buffer."""
        buffer: Bytes = self._inner.allocate(key)
        return buffer

    def commit(self, key: BlockKey, buffer: Bytes, checksum: bytes) -> None:
        """Keep, or only say so."""
        if self._may_write():
            self._inner.commit(key, buffer, checksum)

    def locate(self, key: BlockKey) -> tuple[Bytes, bytes]:
        """Return what the fault leaves of it."""
        self._before_reading(key)
        buffer, checksum = self._inner.locate(key)
        if self._fault == "partial":
            buffer[len(buffer) // 2 :] = 255
        elif self._fault == "corrupting":
            buffer[len(buffer) // 3] ^= 1
        return buffer, checksum
