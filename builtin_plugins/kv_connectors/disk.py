"""Connector `disk`: one file for each block, in a folder that outlives the engine.

Engines with equal settings share the folder. Files are read with `preadv`, not mapped: accessing a
mapped file after its truncation kills the process.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from builtin_plugins.kv_connectors.block_files import (
    CHECKSUM_BYTES,
    MAGIC,
    Damaged,
    block_path,
    parse_block_name,
)
from builtin_plugins.kv_connectors.contract import BlockKey, KVTransferConfig, StoreParts
from builtin_plugins.kv_connectors.directory import BoundedDirectory, PolicyName
from builtin_plugins.kv_connectors.settings import EXTRA, FLAG, read_extra
from builtin_plugins.weight_loaders.api import open_regular
from core.api import ConfigError, EngineConfig
from core.model_spec.kv import KVLayout

if TYPE_CHECKING:
    from builtin_plugins.kv_connectors.contract import Block

PARTIAL_SUFFIX: Final = ".part"
STALE_S: Final = 3600.0
"""Age after which an incomplete file is deleted."""
MAX_PIECES: Final = 512
"""Buffers of one `preadv` or `pwritev`; systems allow 1024."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The connector's own settings."""

    folder: str
    max_bytes: int = 16 << 30
    """Bytes of all ranks together."""
    eviction_policy: PolicyName = "lru"


class Disk:
    """Connector `disk`."""

    medium: Final = "DISK"

    def __init__(self, config: EngineConfig, settings: KVTransferConfig) -> None:
        self._settings = read_extra(Settings, settings)
        if self._settings.max_bytes <= 0:
            raise ConfigError(
                f"{FLAG}.{EXTRA}.max_bytes: got {self._settings.max_bytes}; expected more than 0."
            )

    @staticmethod
    def example_settings(folder: str) -> Mapping[str, Any]:
        """Return settings for the given folder."""
        return {"folder": folder, "max_bytes": 1 << 16}

    def directory(self, layout: KVLayout, num_ranks: int) -> BoundedDirectory:
        """Return a directory with this rank's share of `max_bytes`."""
        group_bytes = [layout.pools[group.pool].block_bytes for group in layout.groups]
        return BoundedDirectory(
            self._settings.max_bytes // num_ranks, group_bytes, self._settings.eviction_policy
        )

    def store(self, parts: StoreParts) -> Folder:
        """Return this rank's subfolder. Raises `ConfigError` if it is not writable."""
        path = Path(self._settings.folder).expanduser() / parts.fingerprint
        check_writable(path, "folder", self._settings.folder)
        return Folder(path, parts.block_bytes)

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return 0: the page cache is reclaimable."""
        return 0


def check_writable(path: Path, field: str, given: str) -> None:
    """Create a folder. Raises `ConfigError` naming its setting if it is not writable."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f"{secrets.token_hex(8)}{PARTIAL_SUFFIX}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"{FLAG}.{EXTRA}.{field} {given!r} cannot be written to: {error.strerror}. Choose "
            "another folder."
        ) from error


class Folder:
    """Block files of one rank. A file gets its final name once it is complete."""

    checksum: Literal["sum", "crc32"] = "crc32"

    def __init__(self, path: Path, block_bytes: Iterable[int]) -> None:
        self._path = path
        self._file_bytes = [len(MAGIC) + CHECKSUM_BYTES + size for size in block_bytes]
        self._num_written = 0
        self._id = secrets.token_hex(8)
        """Part of the names of incomplete files: in containers, process ids are not unique."""

    def survey(self) -> Iterable[BlockKey]:
        """Return the stored blocks, oldest first. Deletes incomplete and stale foreign files."""
        found = []
        for entry in self._entries():
            with suppress(OSError):  # another engine may delete it meanwhile
                stat = entry.stat(follow_symlinks=False)
                key = parse_block_name(entry.name, len(self._file_bytes))
                if key is not None and stat.st_size == self._file_bytes[key.group]:
                    found.append((stat.st_mtime_ns, key))
                elif key is not None or time.time() - stat.st_mtime > STALE_S:
                    os.unlink(entry.path)
        return [key for _, key in sorted(found)]

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        with suppress(FileNotFoundError), os.scandir(self._path) as folders:
            for folder in folders:
                with (
                    suppress(FileNotFoundError, NotADirectoryError),
                    os.scandir(folder.path) as files,
                ):
                    yield from files

    def write(self, key: BlockKey, block: Block, checksum: bytes) -> None:
        """Write a temporary file, and rename it."""
        path = self._path / block_path(key)
        self._num_written += 1
        path.parent.mkdir(parents=True, exist_ok=True)  # it may have been deleted
        suffix = f"{self._id}.{self._num_written}{PARTIAL_SUFFIX}"
        partial = path.with_name(f"{path.name}.{suffix}")
        try:
            with open(partial, "wb", buffering=0) as file:
                _transfer(os.pwritev, file.fileno(), [MAGIC, checksum, *block])
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise

    def read(self, key: BlockKey, block: Block) -> bytes:
        """Read a file and update its time. Raises `Damaged` for a malformed file."""
        head = bytearray(len(MAGIC) + CHECKSUM_BYTES)
        with open_regular(self._path / block_path(key)) as file:
            _transfer(os.preadv, file.fileno(), [head, *block])
            with suppress(OSError):  # the folder may have become read-only
                os.utime(file.fileno())
        if not head.startswith(MAGIC):
            raise Damaged("it is not a block file any more")
        return bytes(head[len(MAGIC) :])

    def drop(self, key: BlockKey) -> None:
        """Delete the file."""
        (self._path / block_path(key)).unlink(missing_ok=True)

    def close(self) -> None:
        """Do nothing: no file stays open."""


def _transfer(call: Any, descriptor: int, pieces: Iterable[Any]) -> None:
    """Read or write all bytes of the pieces.

    Raises `OSError` if the disk is full, `Damaged` if the file is too short.
    """
    views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    offset = 0
    while views:
        count = call(descriptor, views[:MAX_PIECES], offset)
        if not count:
            raise Damaged("the file is too short")
        offset += count
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if count:
            views[0] = views[0][count:]
