"""Memory for weights in pages that the system can make large: small weights lie together in one,
since each reads faster so.
"""

from __future__ import annotations

import ctypes
from typing import Final

import torch

LARGE_PAGE: Final = 2 << 20
CHUNK: Final = 128 << 20
"""Address space that is taken at a time; of what is not given out of it, less than a page is ever
in memory.
"""
LINE: Final = 64


class LargePages:
    """Bound to a loaded library; for one thread at a time.

    Memory goes back when all that lies in its chunk is let go.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library: Final = library
        self._chunk = torch.empty(0, dtype=torch.uint8, device="cpu")

    def take(self, num_bytes: int) -> torch.Tensor:
        """Return so many bytes, uninitialised, from the beginning of a cache line on."""
        probe = torch.empty(0, dtype=torch.uint8)
        if not probe.is_cpu:  # a plan counts bytes on the device "meta"
            return probe.new_empty(num_bytes)
        if num_bytes > self._chunk.numel():
            self._chunk = take_large(
                self._library, max(CHUNK, -(-num_bytes // LARGE_PAGE) * LARGE_PAGE)
            )
        taken = self._chunk[:num_bytes]
        self._chunk = self._chunk[-(-num_bytes // LINE) * LINE :]
        return taken


def take_large(library: ctypes.CDLL, num_bytes: int) -> torch.Tensor:
    """Return so many bytes, uninitialised, for which large pages are asked as far as they fill any."""
    memory = torch.empty(num_bytes + LARGE_PAGE, dtype=torch.uint8)
    start = -memory.data_ptr() % LARGE_PAGE
    library.core_large_pages(memory.data_ptr() + start, num_bytes // LARGE_PAGE * LARGE_PAGE)
    return memory[start : start + num_bytes]
