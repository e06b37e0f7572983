"""Connector `shared_storage`: a folder shared by several engines, without an index.

The reference connector. It writes one file for each block and rank, as `disk` does. A request
finds the blocks of other engines at once, at the cost of one file lookup for each of its blocks.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from builtin_plugins.kv_connectors.block_files import MAGIC, block_path
from builtin_plugins.kv_connectors.contract import BlockKey, KVTransferConfig, StoreParts
from builtin_plugins.kv_connectors.directory import BoundedDirectory, PolicyName
from builtin_plugins.kv_connectors.disk import Folder, check_writable
from builtin_plugins.kv_connectors.settings import EXTRA, FLAG, read_extra
from core.api import ConfigError, EngineConfig
from core.model_spec.kv import KVLayout

MAX_SEEN: Final = 1 << 20
"""Remembered blocks of other engines; one request has fewer."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The connector's own settings; named as in vLLM."""

    shared_storage_path: str
    max_bytes: int = 16 << 30
    """Bytes that this engine may store, of all ranks together."""
    eviction_policy: PolicyName = "lru"


class SharedStorage:
    """Connector `shared_storage`."""

    def __init__(self, config: EngineConfig, settings: KVTransferConfig) -> None:
        self._settings = read_extra(Settings, settings)
        self._config = config
        if self._settings.max_bytes <= 0:
            raise ConfigError(
                f"{FLAG}.{EXTRA}.max_bytes: got {self._settings.max_bytes}; expected more than 0."
            )

    @staticmethod
    def example_settings(folder: str) -> Mapping[str, Any]:
        """Return settings for the given folder."""
        return {"shared_storage_path": folder, "max_bytes": 1 << 16}

    def directory(self, layout: KVLayout, num_ranks: int) -> SharedDirectory:
        """Return a directory that reads the folders of all ranks."""
        stages = self._config.parallel.pipeline_parallel_size
        folders = [self._folder(layout, rank) for rank in range(num_ranks * stages)]
        group_bytes = [layout.pools[group.pool].block_bytes for group in layout.groups]
        return SharedDirectory(
            folders,
            self._settings.max_bytes // num_ranks,
            group_bytes,
            self._settings.eviction_policy,
        )

    def store(self, parts: StoreParts) -> SharedFolder:
        """Return this rank's folder. Raises `ConfigError` if it is not writable."""
        path = self._folder(parts.layout, parts.rank)
        check_writable(path, "shared_storage_path", self._settings.shared_storage_path)
        # The folder name covers only the facts that the scheduler half knows. The fingerprint in
        # each file's magic covers all of them.
        return SharedFolder(path, parts.block_bytes, MAGIC + bytes.fromhex(parts.fingerprint))

    def _folder(self, layout: KVLayout, rank: int) -> Path:
        config = self._config
        parallel = config.parallel
        facts = {
            "groups": msgspec.to_builtins(layout.groups),
            "pools": [(pool.slot_bytes, pool.num_slots) for pool in layout.pools],
            "model": (config.model.dtype, config.model.quantization),
            "ranks": (parallel.tensor_parallel_size, parallel.pipeline_parallel_size),
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return Path(self._settings.shared_storage_path).expanduser() / digest[:16] / f"rank-{rank}"

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return 0: the page cache is reclaimable."""
        return 0


class SharedDirectory(BoundedDirectory):
    """Holds every block with a file on all ranks. Its size counts only this engine's blocks."""

    def __init__(
        self,
        folders: Sequence[Path],
        capacity_bytes: int,
        group_bytes: Sequence[int],
        policy: PolicyName,
    ) -> None:
        """`folders`: the folder of each rank."""
        super().__init__(capacity_bytes, group_bytes, policy)
        self._folders = folders
        self._seen: OrderedDict[BlockKey, None] = OrderedDict()
        """Blocks of other engines. A hit must stay one until the block is read."""

    def holds(self, key: BlockKey) -> bool:
        """Return whether all ranks have a file of a block."""
        if super().holds(key) or key in self._seen:
            return True
        if not all((folder / block_path(key)).exists() for folder in self._folders):
            return False
        self._seen[key] = None
        if len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)
        return True

    def discard(self, key: BlockKey) -> None:
        """Remove a block; the next `holds` checks its files again."""
        self._seen.pop(key, None)
        super().discard(key)


class SharedFolder(Folder):
    """The folder of one rank."""

    def survey(self) -> Iterable[BlockKey]:
        """Return nothing: the directory checks the files itself."""
        return ()
