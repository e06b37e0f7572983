"""Connector `shared_storage`: a folder shared by several engines, without an index.

It writes one file for each block and rank, as `disk` does. A new request waits until a thread has
looked for its blocks, so that it finds those of other engines at once, and a folder that does not
answer delays no other request.
"""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.kv_connectors.block_files import block_path
from builtin_plugins.kv_connectors.contract import BlockKey, KVTransferConfig, StoreParts
from builtin_plugins.kv_connectors.directory import BoundedDirectory, PolicyName
from builtin_plugins.kv_connectors.disk import Folder, check_writable
from builtin_plugins.kv_connectors.settings import EXTRA, FLAG, read_extra
from core.api import ConfigError, EngineConfig
from core.model_spec.kv import KVLayout

if TYPE_CHECKING:
    from builtin_plugins.kv_connectors.contract import Block

MAX_FOUND: Final = 1 << 20
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

    supports_lookup: Final = True

    def __init__(self, config: EngineConfig, settings: KVTransferConfig) -> None:
        self._settings = read_extra(Settings, settings)
        if self._settings.max_bytes <= 0:
            raise ConfigError(
                f"{FLAG}.{EXTRA}.max_bytes: got {self._settings.max_bytes}; expected more than 0."
            )

    @staticmethod
    def example_settings(folder: str) -> Mapping[str, Any]:
        """Return settings for the given folder."""
        return {"shared_storage_path": folder, "max_bytes": 1 << 16}

    def directory(self, layout: KVLayout, num_ranks: int) -> SharedDirectory:
        """Return a directory with this rank's share of `max_bytes`."""
        group_bytes = [layout.pools[group.pool].block_bytes for group in layout.groups]
        return SharedDirectory(
            self._settings.max_bytes // num_ranks, group_bytes, self._settings.eviction_policy
        )

    def store(self, parts: StoreParts) -> SharedFolder:
        """Return this rank's subfolder. Raises `ConfigError` if it is not writable."""
        given = self._settings.shared_storage_path
        path = Path(given).expanduser() / parts.fingerprint
        check_writable(path, "shared_storage_path", given)
        return SharedFolder(path, parts.block_bytes)

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return 0: the page cache is reclaimable."""
        return 0


class SharedDirectory(BoundedDirectory):
    """This engine's blocks, of which the size counts, and those that it found."""

    def __init__(self, capacity_bytes: int, group_bytes: Sequence[int], policy: PolicyName) -> None:
        super().__init__(capacity_bytes, group_bytes, policy)
        self._found: OrderedDict[BlockKey, None] = OrderedDict()
        """Blocks of other engines. A hit must stay one until the block is read."""

    def holds(self, key: BlockKey) -> bool:
        """Return whether a block was stored or found."""
        return super().holds(key) or key in self._found

    def admit(self, key: BlockKey, pinned: Container[BlockKey]) -> list[BlockKey] | None:
        """Make room for a block, unless another engine has stored it."""
        return None if key in self._found else super().admit(key, pinned)

    def add_found(self, key: BlockKey) -> None:
        """Hold a block of another engine, which takes no space of this one."""
        if key in self._admitted:
            return  # it is being written here
        self._found[key] = None
        if len(self._found) > MAX_FOUND:
            self._found.popitem(last=False)

    def discard(self, key: BlockKey) -> None:
        """Remove a block; the next request looks for it again."""
        self._found.pop(key, None)
        super().discard(key)


class SharedFolder(Folder):
    """The folder of one rank, which other engines write to as well."""

    def survey(self) -> Iterable[BlockKey]:
        """Return nothing: blocks are looked up."""
        return ()

    def write(self, key: BlockKey, block: Block, checksum: bytes) -> None:
        """Write a file, unless another engine has: a block of this key has the same bytes."""
        if not self._has(key):
            super().write(key, block, checksum)

    def lookup(self, keys: Sequence[BlockKey]) -> Iterable[BlockKey]:
        """Return the blocks with a complete file. Raises `OSError` for a folder without access.

        If the first block of every group is missing, later ones are not looked up: they are
        rarely of use.
        """
        firsts = {key.group: key for key in reversed(keys)}
        if not any(map(self._has, firsts.values())):
            return []
        return list(filter(self._has, keys))

    def _has(self, key: BlockKey) -> bool:
        try:
            found = os.stat(self._path / block_path(key), follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == self._file_bytes[key.group]
