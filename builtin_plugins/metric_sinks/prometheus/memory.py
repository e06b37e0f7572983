"""Memory by process and owner, as far as the operating system reports it."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from builtin_plugins.metric_sinks.providers import memory_owners, plugin_faults, plugin_seconds

if TYPE_CHECKING:
    from core.api import Registry

API: Final = "api"
FREE_HEAP: Final = "free_heap"
OTHER: Final = "other"
STATM: Final = Path("/proc/self/statm")

Sizes = dict[str, tuple[int, int | None]]
"""Current and maximum size in bytes, by owner; None: no maximum."""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of one process, and the faults and time of its plugins."""

    process: str
    resident: int
    """Resident memory, in bytes."""
    owners: Sizes
    """Sizes that add up to the resident memory."""
    faults: Mapping[str, Sequence[Any]]
    """Number of exceptions and the last one's text, by plugin."""
    seconds: Mapping[str, float]
    """Time of calls, by plugin."""


def processes(
    owners: Mapping[str, tuple[int, int]],
    engine: Sequence[bytes],
    faults: Mapping[str, Sequence[Any]] | None = None,
    seconds: Mapping[str, float] | None = None,
) -> Iterator[ProcessMemory]:
    """Yield each process once: this one, and those in the answers of the engine.

    `owners`, `faults` and `seconds` are those of this process, unless the engine runs in it.
    """
    answers = [msgspec.json.decode(answer) for answer in engine]
    resident = resident_bytes()
    free = heap_bytes()[1]
    seen = set()
    for answer in answers:
        if answer["pid"] not in seen:
            seen.add(answer["pid"])
            yield _process_memory(
                answer["process"],
                answer["resident"],
                answer["heap_free"],
                answer["owners"],
                answer.get("faults") or {},
                answer.get("seconds") or {},
            )
    if os.getpid() not in seen:
        yield _process_memory(API, resident, free, owners, faults or {}, seconds or {})


def process_memory(registry: Registry, process: str) -> dict[str, Any]:
    """Return the memory of this process, and the faults and time of its plugins, as plain data."""
    used, free = heap_bytes()
    owners = {owner: list(sizes) for owner, sizes in memory_owners(registry).usage().items()}
    return {
        "process": process,
        "pid": os.getpid(),
        "resident": resident_bytes(),
        "heap_used": used,
        "heap_free": free,
        "owners": owners,
        "faults": plugin_faults(registry),
        "seconds": plugin_seconds(registry),
    }


def _process_memory(
    process: str,
    resident: int,
    free: int,
    owners: Mapping[str, Sequence[int]],
    faults: Mapping[str, Sequence[Any]],
    seconds: Mapping[str, float],
) -> ProcessMemory:
    sizes: Sizes = {owner: (now, maximum) for owner, (now, maximum) in owners.items()}
    sizes[FREE_HEAP] = (free, None)
    named = sum(now for now, _ in sizes.values())
    sizes[OTHER] = (max(0, resident - named), None)
    return ProcessMemory(process, resident, sizes, faults, seconds)


# --- the operating system


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def resident_bytes() -> int:
    """Return the resident memory of this process, including mapped files; 0 if it is unknown."""
    with suppress(OSError, ValueError):
        return int(STATM.read_text().split()[1]) * mmap.PAGESIZE
    return 0


def heap_bytes() -> tuple[int, int]:
    """Return the used and the free bytes of the C library's heap."""
    with suppress(OSError, AttributeError):  # another C library has no mallinfo2
        mallinfo2 = ctypes.CDLL(None).mallinfo2
        mallinfo2.restype = _MallInfo
        info = mallinfo2()
        return info.uordblks + info.hblkhd, info.fordblks
    return 0, 0


def touched_bytes(address: int, num_bytes: int) -> int:
    """Return how many bytes of a memory range are in memory; all of them if it is unknown."""
    page = mmap.PAGESIZE
    first = address // page * page
    last = -(-(address + num_bytes) // page) * page
    with suppress(OSError, AttributeError):
        pages = (ctypes.c_ubyte * ((last - first) // page))()
        start = ctypes.c_void_p(first)
        size = ctypes.c_size_t(last - first)
        if ctypes.CDLL(None).mincore(start, size, pages) == 0:
            return min(num_bytes, bytes(pages).count(1) * page)
    return num_bytes
