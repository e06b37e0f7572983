"""A folder behind the cache: a file for each block, found again after a restart, and shared by
engines of one kind.

Files are read by `preadv`. They are not mapped: a mapped file that somebody cuts short kills
whoever looks at it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from builtin_plugins.kv_connectors.bounded import BoundedDirectory
from builtin_plugins.kv_connectors.eviction import Name
from builtin_plugins.kv_connectors.names import MAGIC, SEAL_BYTES, Damaged, key_of, path_of
from builtin_plugins.kv_connectors.settings import EXTRA, FLAG, read_extra
from core.api import BlockKey, ConfigError, EngineConfig, KVLayout, KVTransferConfig, StoreParts

if TYPE_CHECKING:
    from core.contracts.kv_connectors import Block

UNFINISHED: Final = ".part"
STALE_S: Final = 3600.0
"""An unfinished file that is older is nobody's."""
MOST_PIECES: Final = 512
"""Of one `preadv` or `pwritev`; systems allow 1024."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The connector's own."""

    folder: str
    max_bytes: int = 16 << 30
    """Of all ranks together."""
    eviction_policy: Name = "lru"


class Disk:
    """Connector `disk`."""

    medium: Final = "DISK"

    def __init__(self, config: EngineConfig, settings: KVTransferConfig) -> None:
        self._settings = read_extra(Settings, settings)
        if self._settings.max_bytes <= 0:
            raise ConfigError(
                f"{FLAG}.{EXTRA}.max_bytes must be more than 0, not {self._settings.max_bytes}."
            )

    @staticmethod
    def trial(folder: str) -> Mapping[str, Any]:
        """The folder."""
        return {"folder": folder, "max_bytes": 1 << 16}

    def directory(self, layout: KVLayout, num_ranks: int) -> BoundedDirectory:
        """Return a directory of this rank's share, however many stages the layers are split into."""
        group_bytes = [layout.pools[group.pool].block_bytes for group in layout.groups]
        return BoundedDirectory(
            self._settings.max_bytes // num_ranks, group_bytes, self._settings.eviction_policy
        )

    def store(self, parts: StoreParts) -> Folder:
        """Return this rank's part of the folder.

        Raises `ConfigError` where it cannot be written to.
        """
        path = Path(self._settings.folder).expanduser() / parts.fingerprint
        check_writable(path, "folder", self._settings.folder)
        return Folder(path, parts.block_bytes)

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return nothing: what the system keeps of files, it gives back."""
        return 0


def check_writable(path: Path, field: str, given: str) -> None:
    """Make a folder.

    Raises `ConfigError` naming the field it was `given` in where nothing can be written to it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f"{os.getpid()}{UNFINISHED}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"{FLAG}.{EXTRA}.{field} {given!r} cannot be written to: {error.strerror}. Name "
            "another."
        ) from error


class Folder:
    """Blocks as files, named by group and key. A file has its name only when it is whole."""

    seal: Literal["sum", "crc32"] = "crc32"

    def __init__(self, path: Path, block_bytes: Iterable[int], magic: bytes = MAGIC) -> None:
        """`magic`: what its files begin with, and no others."""
        self._path = path
        self._magic = magic
        self._file_bytes = [len(magic) + SEAL_BYTES + size for size in block_bytes]
        self._num_written = 0

    def survey(self) -> Iterable[BlockKey]:
        """Return the blocks there are; files that are none of ours, or not whole, are removed where
        they are stale.
        """
        found = []
        for entry in self._entries():
            with suppress(OSError):  # another engine may remove it meanwhile
                stat = entry.stat(follow_symlinks=False)
                key = key_of(entry.name, len(self._file_bytes))
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

    def write(self, key: BlockKey, block: Block, seal: bytes) -> None:
        """Write a file beside its place and put it there."""
        path = self._path / path_of(key)
        self._num_written += 1
        path.parent.mkdir(parents=True, exist_ok=True)  # somebody may have removed it
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.{self._num_written}{UNFINISHED}")
        try:
            with open(unfinished, "wb", buffering=0) as file:
                _transfer(os.pwritev, file.fileno(), [self._magic, seal, *block])
            os.replace(unfinished, path)
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise

    def read(self, key: BlockKey, block: Block) -> bytes:
        """Read a file; it counts as used now.

        Raises `Damaged` for one that is not whole, `OSError` for one of others.
        """
        head = bytearray(len(self._magic) + SEAL_BYTES)
        with open(self._path / path_of(key), "rb", buffering=0) as file:
            _transfer(os.preadv, file.fileno(), [head, *block])
            with suppress(OSError):  # in a folder that has become read-only it is as good as before
                os.utime(file.fileno())
        if not head.startswith(MAGIC):
            raise Damaged("it is no block's file any more")
        if not head.startswith(self._magic):
            raise OSError("it is no block's file of an engine that is set up alike")
        return bytes(head[len(self._magic) :])

    def drop(self, key: BlockKey) -> None:
        """Remove the file."""
        (self._path / path_of(key)).unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is open."""


def _transfer(call: Any, descriptor: int, pieces: Iterable[Any]) -> None:
    """Read or write all bytes of the pieces.

    Raises `OSError` where the disk is full, `Damaged` where the file ends.
    """
    views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
    at = 0
    while views:
        count = call(descriptor, views[:MOST_PIECES], at)
        if not count:
            raise Damaged("the file is cut short")
        at += count
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if count:
            views[0] = views[0][count:]
