"""What the system says of the memory of this process. Where it says nothing, nothing is claimed."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from pathlib import Path
from typing import Final

STATM: Final = Path("/proc/self/statm")


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def resident_bytes() -> int:
    """Return the bytes of this process that are in memory, those of mapped files included; 0 where
    nobody says.
    """
    with suppress(OSError, ValueError):
        return int(STATM.read_text().split()[1]) * mmap.PAGESIZE
    return 0


def heap_bytes() -> tuple[int, int]:
    """Return what the C library's allocator has given out, and what it holds free for the next who
    asks.
    """
    with suppress(OSError, AttributeError):  # another C library has no mallinfo2
        ask = ctypes.CDLL(None).mallinfo2
        ask.restype = _MallInfo
        info = ask()
        return info.uordblks + info.hblkhd, info.fordblks
    return 0, 0


def touched_bytes(address: int, num_bytes: int) -> int:
    """Return how much of a range of memory has been written to; all of it where the system does not
    say.
    """
    page = mmap.PAGESIZE
    first = address // page * page
    last = -(-(address + num_bytes) // page) * page
    with suppress(OSError, AttributeError):
        pages = (ctypes.c_ubyte * ((last - first) // page))()
        place = ctypes.c_void_p(first), ctypes.c_size_t(last - first), pages
        if ctypes.CDLL(None).mincore(*place) == 0:
            return min(num_bytes, bytes(pages).count(1) * page)
    return num_bytes
