"""Processed tensors in shared memory, by content hash, held by requests.

One file per item. The process of the input processor writes it and keeps it while it is recently
used. A request holds it by a hard link, so the memory is freed when neither needs it any more.
Workers map the file; nothing is copied through messages.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

SHARED_MEMORY: Final = Path("/dev/shm")
PREFIX: Final = "engine-media-"
ITEMS: Final = "items"
PENDING: Final = "pending"
ENGINE: Final = "engine-"
"""Prefix of files that name the engines with requests that hold items."""
MAX_PENDING_S: Final = 600.0
"""Longest time between the preparation of a request and its arrival in the engine."""
MIN_FREE_BYTES: Final = 256 << 20
"""Free shared memory below which the store is in a temporary folder."""


def make_folder() -> str:
    """Return a new folder for a store, after removing those of processes that have ended."""
    base = SHARED_MEMORY
    if not base.is_dir() or shutil.disk_usage(base).free < MIN_FREE_BYTES:
        base = Path(tempfile.gettempdir())
    for path in base.glob(f"{PREFIX}*"):
        if not _is_alive(path.name.removeprefix(PREFIX).partition("-")[0]):
            remove_folder(path)
    return tempfile.mkdtemp("", f"{PREFIX}{os.getpid()}-", base)


def remove_folder(path: Path) -> None:
    """Remove the folder of a store without a writer.

    Requests may outlive it in an engine of another process; what they hold stays.
    """
    engines = {mark.name.removeprefix(ENGINE) for mark in path.glob(f"{ENGINE}*")}
    if any(_is_alive(pid) for pid in engines - {str(os.getpid())}):
        for name in (ITEMS, PENDING):
            shutil.rmtree(path / name, ignore_errors=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: str) -> bool:
    return not pid.isdigit() or Path(f"/proc/{pid}").exists()


class TensorStore:
    """The writer's side of a store, and all that a holder needs."""

    def __init__(self, folder: str, cache_bytes: int = 0) -> None:
        self._folder = Path(folder)
        self._items = self._folder / ITEMS
        self._pending = self._folder / PENDING
        self._held = self._folder / "held"
        self._cache_bytes = cache_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """Bytes of the items of the cache, the least recently used first."""

    def open(self) -> None:
        """Create the folders, or read those of a writer that has ended."""
        for folder in (self._items, self._pending, self._held):
            folder.mkdir(exist_ok=True)
        paths = sorted(self._items.iterdir(), key=lambda path: path.stat().st_mtime)
        self._sizes = OrderedDict((path.name, path.stat().st_size) for path in paths)

    def write(
        self, content_hash: bytes, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, str]
    ) -> None:
        """Add an item, and remove the least recently used ones that no longer fit."""
        from safetensors.torch import save_file  # lazy: only the writer needs torch

        name = content_hash.hex()
        path = self._items / name
        partial = self._items.parent / f"{name}.partial"
        save_file(dict(tensors), partial, dict(facts))
        partial.rename(path)
        self._sizes[name] = path.stat().st_size
        self._trim(keep=name)

    def facts(self, content_hash: bytes) -> Mapping[str, str] | None:
        """Return the facts of an item, used now; None without one."""
        from safetensors import safe_open  # lazy: only the writer needs it

        name = content_hash.hex()
        if name not in self._sizes:
            return None
        self._sizes.move_to_end(name)
        with safe_open(self._items / name, "pt") as file:
            return dict(file.metadata() or {})

    def hold(self, holder: str, content_hashes: Iterable[bytes]) -> None:
        """Hold items for a request that is being prepared, until `adopt` or `sweep`."""
        folder = self._pending / holder
        folder.mkdir(exist_ok=True)
        for content_hash in set(content_hashes):
            name = content_hash.hex()
            with suppress(FileExistsError):
                (folder / name).hardlink_to(self._items / name)

    def adopt(self, holder: str) -> None:
        """Hold the items until `release`: their request has arrived in the engine."""
        with suppress(OSError):  # adopted by another sequence, or by an engine that has ended
            (self._folder / f"{ENGINE}{os.getpid()}").touch()
            (self._pending / holder).rename(self._held / holder)

    def release(self, holder: str) -> None:
        """Release the items of a request that has ended, in the engine or before."""
        for folder in (self._pending, self._held):
            shutil.rmtree(folder / holder, ignore_errors=True)

    def sweep(self) -> None:
        """Release the items of requests that were refused after their preparation."""
        oldest = time.time() - MAX_PENDING_S
        for path in self._pending.iterdir():
            if path.stat().st_mtime < oldest:
                shutil.rmtree(path, ignore_errors=True)

    def read(self, holder: str, content_hash: bytes) -> dict[str, torch.Tensor]:
        """Return the tensors of an item, mapped. Raises OSError without them."""
        from safetensors.torch import load_file  # lazy: only workers read

        return load_file(self._held / holder / content_hash.hex())

    def holders(self) -> Iterator[str]:
        """Yield the requests that hold items."""
        for folder in (self._pending, self._held):
            yield from (path.name for path in folder.iterdir())

    def _trim(self, keep: str) -> None:
        while sum(self._sizes.values()) > self._cache_bytes:
            oldest = next(iter(self._sizes))
            if oldest == keep and len(self._sizes) == 1:
                return  # until it is held
            self._sizes.pop(oldest)
            (self._items / oldest).unlink(missing_ok=True)
