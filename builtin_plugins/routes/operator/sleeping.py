"""Sleep: an engine that computes nothing gives the memory of its KV cache back to the system, until it is woken.

On a CPU weights lie where they would be moved to, so they stay; a cache whose blocks nobody holds is given back page by page,
at its address, and comes again as it is written to.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from core.api import InvalidRequest

if TYPE_CHECKING:
    from core.contracts.scheduling import WorkerParts

NAME: Final = "sleeping"
MADV_DONTNEED: Final = 4
"""Linux': what the range held is gone, and its pages are the system's again."""


class Sleeping:
    """The scheduler half: remembers that it sleeps. An engine that was started again is awake."""

    name = NAME

    def __init__(self) -> None:
        self._asleep = False

    def call(self, verb: str, data: bytes) -> bytes:
        """Answer `fall`, `wake` and `state`, each with the state after it."""
        if verb not in ("fall", "wake", "state"):
            raise InvalidRequest("name", f"{NAME} knows fall, wake and state, not {verb!r}.")
        self._asleep = verb == "fall" or (self._asleep and verb == "state")
        return b"1" if self._asleep else b"0"


class Releasing:
    """The worker half: gives memory back. Whoever calls has made sure that no block is in use, and none is found again."""

    name = NAME

    def attach(self, parts: WorkerParts) -> None:
        """Remember where the cache is."""
        on_host = parts.device == "cpu"
        self._memory = [(t.data_ptr(), t.nbytes) for t in parts.memory.values()] if on_host else []

    def call(self, verb: str, data: bytes) -> bytes | None:
        """Answer `fall` with the bytes by which this process has become smaller."""
        if verb != "fall":
            return None
        before = _resident_bytes()
        for address, num_bytes in self._memory:
            _give_back(address, num_bytes)
        with suppress(AttributeError):  # another C library keeps what it was given back
            ctypes.CDLL(None).malloc_trim(0)
        return str(max(0, before - _resident_bytes())).encode()


def _give_back(address: int, num_bytes: int) -> None:
    """Give whole pages back; those at the edges may be others', too."""
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (address + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first and os.uname().sysname == "Linux":
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_DONTNEED)


def _resident_bytes() -> int:
    with suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    return 0
