"""Processed tensors in shared memory, by content hash, held by requests.

One file per item. The process of the input processor writes it and keeps it while it is recently
used. A request holds it by a hard link, so the memory is freed when neither needs it any more.
Workers map the file; nothing is copied through messages.

A holder is pending until an engine adopts it. Pending holders, and those of engines that have
ended, are released after some time; the time is monotonic, so that no jump of the clock matters.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
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
"""Longest time between the preparation of a request and its arrival in an engine, also in the next
one after a death.
"""
MAX_PENDING_BYTES: Final = 1 << 30
"""Largest size of all items that are held by pending holders only."""
MIN_PENDING_S: Final = 30.0
"""Time for which a pending holder keeps its items even if others need the memory."""
MIN_FREE_BYTES: Final = 256 << 20
"""Free shared memory below which the store is in a temporary folder."""


def make_folder() -> str:
    """Return a new folder for a store, after removing those of processes that have ended."""
    base = SHARED_MEMORY
    if not base.is_dir() or shutil.disk_usage(base).free < MIN_FREE_BYTES:
        base = Path(tempfile.gettempdir())
    for path in base.glob(f"{PREFIX}*"):
        if not _has_writer(path):
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


def leave_folder(path: Path) -> None:
    """Take this engine's mark from the folder of a store, and remove one without a writer."""
    (path / f"{ENGINE}{os.getpid()}").unlink(missing_ok=True)
    if not _has_writer(path):
        remove_folder(path)


def _has_writer(path: Path) -> bool:
    return _is_alive(path.name.removeprefix(PREFIX).partition("-")[0])


def _is_alive(pid: str) -> bool:
    return not pid.isdigit() or Path(f"/proc/{pid}").exists()


def _has_engine(holder: Path) -> bool:
    """Return whether a living engine has adopted a holder."""
    names = (path.name for path in _files(holder))
    return any(_is_alive(name.removeprefix(ENGINE)) for name in names if name.startswith(ENGINE))


def _files(holder: Path) -> list[Path]:
    """Return a holder's files; none if it was adopted or released meanwhile."""
    try:
        return list(holder.iterdir())
    except FileNotFoundError:
        return []


class StoreFull(Exception):
    """There is no memory for an item until other requests have started."""


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
        self._unowned_s: dict[Path, float] = {}
        """Monotonic times since which the folders of holders belong to no living engine."""

    def open(self) -> None:
        """Create the folders, or read those of a writer that has ended."""
        for folder in (self._items, self._pending, self._held):
            folder.mkdir(exist_ok=True)
        paths = sorted(self._items.iterdir(), key=lambda path: path.stat().st_mtime)
        self._sizes = OrderedDict((path.name, path.stat().st_size) for path in paths)

    def write(
        self, content_hash: bytes, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, str]
    ) -> None:
        """Add an item, and remove the least recently used ones that no longer fit.

        Raises `StoreFull` without memory for it.
        """
        from safetensors import SafetensorError  # lazy: only the writer needs torch
        from safetensors.torch import save_file

        name = content_hash.hex()
        path = self._items / name
        partial = self._items.parent / f"{name}.partial"
        try:
            save_file(dict(tensors), partial, dict(facts))
            partial.rename(path)
        except (OSError, SafetensorError) as error:
            partial.unlink(missing_ok=True)
            if f"os error {errno.ENOSPC}" in str(error):
                raise StoreFull(f"{self._folder.parent} is full") from error
            raise
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
        """Hold items for a request that is being prepared, until `adopt` or `sweep`.

        Raises `StoreFull` if pending holders have too many bytes.
        """
        folder = self._pending / holder
        folder.mkdir(exist_ok=True)
        self._unowned_s.setdefault(folder, time.monotonic())
        for content_hash in set(content_hashes):
            name = content_hash.hex()
            with suppress(FileExistsError):
                (folder / name).hardlink_to(self._items / name)
        self._bound_pending(folder)

    def adopt(self, holder: str) -> None:
        """Hold the items until `release`: their request has arrived in this engine.

        Raises `OSError` if they have been released.
        """
        held = self._held / holder
        with suppress(OSError):  # adopted by another sequence, or by an engine that has ended
            (self._pending / holder).rename(held)
        own = f"{ENGINE}{os.getpid()}"
        (held / own).touch()
        (self._folder / own).touch()

    def release(self, holder: str) -> None:
        """Release the items of a request that has ended, in the engine or before."""
        for folder in (self._pending, self._held):
            shutil.rmtree(folder / holder, ignore_errors=True)

    def sweep(self) -> None:
        """Release the items of requests that were refused after their preparation, and those of
        engines that have ended, if no other engine has adopted them.
        """
        now_s = time.monotonic()
        ended = (path for path in self._held.iterdir() if not _has_engine(path))
        unowned = [*self._pending.iterdir(), *ended]
        self._unowned_s = {path: self._unowned_s.get(path, now_s) for path in unowned}
        for path, since_s in self._unowned_s.items():
            if now_s - since_s > MAX_PENDING_S:
                shutil.rmtree(path, ignore_errors=True)

    def read(self, holder: str, content_hash: bytes) -> dict[str, torch.Tensor]:
        """Return the tensors of an item, mapped. Raises OSError without them."""
        from safetensors.torch import load_file  # lazy: only workers read

        return load_file(self._held / holder / content_hash.hex())

    def holders(self) -> Iterator[str]:
        """Yield the requests that hold items."""
        for folder in (self._pending, self._held):
            yield from (path.name for path in folder.iterdir())

    def _bound_pending(self, own: Path) -> None:
        """Release the oldest pending holders beyond the bound, or raise `StoreFull` for `own`."""
        latest_s = time.monotonic() - MIN_PENDING_S
        oldest_first = sorted(self._unowned_s.items(), key=lambda pair: pair[1])
        while self._num_pending_bytes() > MAX_PENDING_BYTES:
            path, since_s = oldest_first.pop(0) if oldest_first else (own, latest_s)
            if path == own or since_s > latest_s:
                shutil.rmtree(own, ignore_errors=True)
                raise StoreFull("the items of requests that have not started take too much memory")
            if path.parent == self._pending:
                shutil.rmtree(path, ignore_errors=True)

    def _num_pending_bytes(self) -> int:
        """Return the size of pending items, each counted once."""
        sizes = {}
        for path in chain.from_iterable(map(_files, self._pending.iterdir())):
            with suppress(OSError):  # adopted meanwhile
                sizes[path.name] = path.stat().st_size
        return sum(sizes.values())

    def _trim(self, keep: str) -> None:
        while sum(self._sizes.values()) > self._cache_bytes:
            oldest = next(iter(self._sizes))
            if oldest == keep and len(self._sizes) == 1:
                return  # until it is held
            self._sizes.pop(oldest)
            (self._items / oldest).unlink(missing_ok=True)
