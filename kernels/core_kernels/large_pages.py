"""Memory for weights in huge pages; small weights share pages."""

from __future__ import annotations

import ctypes
from typing import Final

import torch

LARGE_PAGE: Final = 2 << 20
CHUNK: Final = 128 << 20
"""Address space reserved at a time; unused space takes less than one page of memory."""
LINE: Final = 64


class LargePages:
    """Allocator of a loaded library; not thread-safe.

    A chunk is freed when all tensors in it are.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library: Final = library
        self._chunk = torch.empty(0, dtype=torch.uint8, device="cpu")

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Return `num_bytes` uninitialized bytes, aligned to a cache line."""
        probe = torch.empty(0, dtype=torch.uint8)
        if not probe.is_cpu:  # memory plan on the device "meta"
            return probe.new_empty(num_bytes)
        if num_bytes > self._chunk.numel():
            self._chunk = allocate_large(
                self._library, max(CHUNK, -(-num_bytes // LARGE_PAGE) * LARGE_PAGE)
            )
        allocated = self._chunk[:num_bytes]
        self._chunk = self._chunk[-(-num_bytes // LINE) * LINE :]
        return allocated


def allocate_large(library: ctypes.CDLL, num_bytes: int) -> torch.Tensor:
    """Return `num_bytes` uninitialized bytes and request huge pages for them."""
    memory = torch.empty(num_bytes + LARGE_PAGE, dtype=torch.uint8)
    start = -memory.data_ptr() % LARGE_PAGE
    library.core_large_pages(memory.data_ptr() + start, num_bytes // LARGE_PAGE * LARGE_PAGE)
    return memory[start : start + num_bytes]
