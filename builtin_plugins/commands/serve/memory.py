"""How much memory the process that serves may take, and what it has taken of memory and time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from pathlib import Path
from typing import Final

from core.api import ConfigError

LEAST_BYTES: Final = 256 * 1024**2
"""A server without load takes a good part of it."""
USUAL_BYTES: Final = (1024**3, 8 * 1024**3)
"""The default bound lies between."""
HARD_FACTOR: Final = 2
HARD_SPARE_BYTES: Final = 1024**3
"""Address space of stacks and the like that is never used."""
MAPPED_BYTES: Final = 1024**2
"""What is as large as this is given back to the system as soon as it is free."""
M_MMAP_THRESHOLD: Final = -3
"""See mallopt(3)."""


def memory_limit(given: int | None, cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bound in bytes, 0 for none.

    Raises `ConfigError` for one that no server could hold.
    """
    if given is not None:
        if given and given < LEAST_BYTES:
            raise ConfigError(
                f"--api-memory-limit {given} is less than the API process needs by itself; give at "
                "least 256M, or 0 for no bound."
            )
        return given
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = cgroup / "memory.max"
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    least, most = USUAL_BYTES
    return max(least, min(most, total // 4))


def resident_bytes(pid: int) -> int:
    """Return what a process takes of the machine's memory; 0 when it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def used_seconds(pid: int) -> float:
    """Return the processor time a process has taken; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def limit_allocations(pid: int, limit_bytes: int) -> None:
    """Let no single allocation of a process take the machine: it fails far above the bound, before
    anybody looks.
    """
    wanted = HARD_FACTOR * limit_bytes + HARD_SPARE_BYTES
    with contextlib.suppress(OSError, ValueError):  # gone, or bounded more tightly by somebody else
        _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        resource.prlimit(pid, resource.RLIMIT_DATA, (wanted, hard))


def keep_no_large_pieces() -> None:
    """Have this process give large pieces of memory back as soon as they are free.

    glibc learns to keep pieces of up to 32 MB, in an arena per thread: after a few large bodies
    that is megabytes each.
    """
    if sys.platform == "linux":
        adjust = getattr(ctypes.CDLL(None), "mallopt", None)
        if adjust is not None:  # glibc's
            adjust(M_MMAP_THRESHOLD, MAPPED_BYTES)
