"""Pages of memory: those that steps free are kept, and the cache's are taken before steps need
them.

The system clears a page when it is first touched, and in a virtual machine finds memory for it,
too: at half a GB a second a prompt of the 0.6B model spent 8 % of its time on the memory of its
activations and 11 % on that of its keys and values.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import torch
from core_kernels.library import Library

STRIPE: Final = 2 << 20
"""Bytes of each layer's cache that are taken together: a large page."""
STEPS: Final = 16
"""After so many small steps it is looked whether more is needed; after each large one, too."""
IDLE_S: Final = 0.25
"""A process is idle that computed for less than `IDLE_SHARE` of such a time."""
IDLE_SHARE: Final = 0.05
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""See mallopt(3)."""
_MOST_MAPPED: Final = 32 << 20
"""glibc allows no more."""
_MOST_KEPT: Final = 1 << 30
_NICE: Final = 10


def keep_freed_pages() -> None:
    """Have glibc keep what is freed, up to 1 GiB: each step takes as much as the last one freed.

    Pieces of more than 32 MB still go back.
    """
    adjust = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if adjust is not None:
        adjust(_M_MMAP_THRESHOLD, _MOST_MAPPED)
        adjust(_M_TRIM_THRESHOLD, _MOST_KEPT)


class TakenAhead:
    """Has a thread touch memory that will be needed soon, and not more: what nobody comes near
    stays the system's.

    It goes some way ahead of what is used, and further while the process is idle, when that takes
    time from nobody.

    Blocks are used in their order, so what is used of each layer's memory is its beginning. A part
    is used when something in it is not zero. The thread ends with this object; before that nothing
    of the memory can go.
    """

    def __init__(
        self, library: Library, memories: Sequence[torch.Tensor], ahead_bytes: int, idle_bytes: int
    ) -> None:
        """`memories` are zero, bytes.

        Of all of them together `ahead_bytes` are taken beyond what is used, and `idle_bytes` in the
        end where the process is idle.
        """
        self._steps = 0
        self._wake: Final = threading.Event()
        across = STRIPE * max(1, len(memories))
        ahead, idle = (max(1, size // across) for size in (ahead_bytes, idle_bytes))
        ended = threading.Event()
        given = (library, list(memories), ahead, idle, self._wake, ended)
        thread = threading.Thread(target=_take, args=given, name="cache-pages", daemon=True)
        thread.start()
        weakref.finalize(self, _end, thread, ended, self._wake)
        self._wake.set()

    def stepped(self, *, large: bool) -> None:
        """Say that there was a step, a large one or not; waits for nothing."""
        self._steps += 1
        if (large or self._steps % STEPS == 0) and not self._wake.is_set():
            self._wake.set()


def _end(thread: threading.Thread, ended: threading.Event, wake: threading.Event) -> None:
    """End it and wait for it: a thread that Python ends while it exits may take the process along."""
    ended.set()
    wake.set()
    if thread is not threading.current_thread():
        thread.join()


def _take(
    library: Library,
    memories: list[torch.Tensor],
    ahead: int,
    idle: int,
    wake: threading.Event,
    ended: threading.Event,
) -> None:
    if sys.platform == "linux":  # where this is of a thread
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    largest = max(memories, key=torch.Tensor.numel)
    used = 0
    taken = 0
    most = -(-largest.numel() // STRIPE)
    while taken < most:
        computed_s = time.process_time()
        if wake.wait(IDLE_S if taken < used + idle else None):
            wake.clear()
            while used < taken and largest[used * STRIPE : (used + 1) * STRIPE].any():
                used += 1
            goal = used + ahead
        else:
            goal = taken + (time.process_time() - computed_s < IDLE_SHARE * IDLE_S)
        while taken < min(most, goal) and not ended.is_set():
            for memory in memories:
                part = memory[taken * STRIPE : (taken + 1) * STRIPE]
                if not ended.is_set():
                    library.core_touch(part.data_ptr(), part.numel())
            taken += 1
        if ended.is_set():
            return
