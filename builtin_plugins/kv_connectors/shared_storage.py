"""A folder that engines share, without an index: what is there is looked for whenever somebody
asks. The reference connector.

One file for each block and rank, as `disk` writes them. Whatever another engine has put there is
found with the next request, at the price of a look into the folder for each block of it.
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

from builtin_plugins.kv_connectors.bounded import BoundedDirectory
from builtin_plugins.kv_connectors.disk import Folder, check_writable
from builtin_plugins.kv_connectors.eviction import Name
from builtin_plugins.kv_connectors.names import MAGIC, path_of
from builtin_plugins.kv_connectors.settings import EXTRA, FLAG, read_extra
from core.api import BlockKey, ConfigError, EngineConfig, KVLayout, KVTransferConfig, StoreParts

MOST_SEEN: Final = 1 << 20
"""Blocks of others that are remembered; one request has fewer."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The connector's own; names as in vLLM where it has any."""

    shared_storage_path: str
    max_bytes: int = 16 << 30
    """What this engine writes and leaves there, of all ranks together; what others write is theirs
    to remove.
    """
    eviction_policy: Name = "lru"


class SharedStorage:
    """Connector `shared_storage`."""

    def __init__(self, config: EngineConfig, settings: KVTransferConfig) -> None:
        self._settings = read_extra(Settings, settings)
        self._config = config
        if self._settings.max_bytes <= 0:
            raise ConfigError(
                f"{FLAG}.{EXTRA}.max_bytes must be more than 0, not {self._settings.max_bytes}."
            )

    @staticmethod
    def trial(folder: str) -> Mapping[str, Any]:
        """The folder."""
        return {"shared_storage_path": folder, "max_bytes": 1 << 16}

    def directory(self, layout: KVLayout, num_ranks: int) -> SharedDirectory:
        """Return what looks into the folders of all ranks."""
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
        """Return this rank's folder. Raises `ConfigError` where it cannot be written to."""
        path = self._folder(parts.layout, parts.rank)
        check_writable(path, "shared_storage_path", self._settings.shared_storage_path)
        # Whoever looks for files knows less than what bears on their bytes: the rest is asked of
        # each file.
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
        """Return nothing: what the system keeps of files, it gives back."""
        return 0


class SharedDirectory(BoundedDirectory):
    """Holds what every rank has a file of, whoever wrote it, and counts what this engine wrote."""

    def __init__(
        self, folders: Sequence[Path], most_bytes: int, group_bytes: Sequence[int], order: Name
    ) -> None:
        super().__init__(most_bytes, group_bytes, order)
        self._folders = folders
        self._seen: OrderedDict[BlockKey, None] = OrderedDict()
        """Of others, and still there as far as anybody knows: what was said once must hold until it
        is read.
        """

    def holds(self, key: BlockKey) -> bool:
        """Look for the files, unless they are known."""
        if super().holds(key) or key in self._seen:
            return True
        if not all((folder / path_of(key)).exists() for folder in self._folders):
            return False
        self._seen[key] = None
        if len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)
        return True

    def lost(self, key: BlockKey) -> None:
        """Look again."""
        self._seen.pop(key, None)
        super().lost(key)


class SharedFolder(Folder):
    """A rank's part of the folder."""

    def survey(self) -> Iterable[BlockKey]:
        """Return nothing: who wants to know looks."""
        return ()
