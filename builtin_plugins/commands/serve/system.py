"""Operating-system side of the parent: memory limits, temporary folders, standard streams."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import shutil
import stat
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Final

from builtin_plugins.platforms.api import memory_limit_bytes
from core.api import ConfigError

MIN_BYTES: Final = 256 * 1024**2
"""Minimum limit; an idle server takes a good part of it."""
DEFAULT_RANGE_BYTES: Final = (1024**3, 8 * 1024**3)
"""Range of the default limit."""
HARD_FACTOR: Final = 2
HARD_SPARE_BYTES: Final = 1024**3
"""Reserve for unused address space such as stacks."""
MAPPED_BYTES: Final = 1024**2
"""Allocations of this size are returned to the system when freed."""
M_MMAP_THRESHOLD: Final = -3
"""See mallopt(3)."""


def memory_limit(given: int | None, root: Path = Path("/")) -> int:
    """Return the limit in bytes, 0 for none.

    Raises `ConfigError` for a limit below the minimum.
    """
    if given is not None:
        if given and given < MIN_BYTES:
            raise ConfigError(
                f"--api-memory-limit: got {given}; expected at least 256M, or 0 for no limit."
            )
        return given
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    container = memory_limit_bytes(root)
    if container is not None:
        total = min(total, container)
    minimum, maximum = DEFAULT_RANGE_BYTES
    return max(minimum, min(maximum, total // 4))


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def used_seconds(pid: int) -> float:
    """Return the CPU time of a process; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def limit_allocations(pid: int, limit_bytes: int) -> None:
    """Limit the data segment of a process, so that a huge allocation fails before the next
    check.
    """
    limit = HARD_FACTOR * limit_bytes + HARD_SPARE_BYTES
    with contextlib.suppress(OSError, ValueError):  # gone, or already limited more tightly
        _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        resource.prlimit(pid, resource.RLIMIT_DATA, (limit, hard))


def return_large_buffers() -> None:
    """Return large freed buffers of this process to the system at once.

    glibc otherwise caches buffers of up to 32 MB per arena and thread.
    """
    if sys.platform == "linux":
        adjust = getattr(ctypes.CDLL(None), "mallopt", None)
        if adjust is not None:  # glibc
            adjust(M_MMAP_THRESHOLD, MAPPED_BYTES)


_FOLDER: Final = re.compile(r"engine-(?:ranks-)?(\d+)-\w+")


def remove_folders_of(pids: Collection[int], base: Path | None = None) -> None:
    """Remove the temporary folders that belong to these ended processes, by name."""
    base = Path(tempfile.gettempdir()) if base is None else base
    with contextlib.suppress(OSError):
        for folder in base.iterdir():
            owner = _FOLDER.fullmatch(folder.name)
            if owner is None or int(owner[1]) not in pids:
                continue
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)


def reopen_standard_streams() -> None:
    """Open closed standard streams, so that no socket gets their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
            os.set_inheritable(number, True)
