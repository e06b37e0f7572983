"""Checksums of blocks, and copies that compute them in the same pass over memory."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt
from core_kernels.build import FOLDER, LIBRARY_NAME
from core_kernels.checksum_copy import Addresses, ChecksumCopier
from core_kernels.library import load_library, open_library

from builtin_plugins.kv_connectors.api import BlockKey

if TYPE_CHECKING:
    from builtin_plugins.kv_connectors.api import Block, Bytes

WORD_BYTES: Final = 8


class SlotSizes:
    """Bytes of a block in each layer slot of one KV group."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.each: Final = np.array(sizes, np.int64)
        self._starts: Final = (np.cumsum(self.each) - self.each).astype(np.uint64)

    def split(self, buffer: Bytes) -> HostBlock:
        """Return a contiguous buffer as a block."""
        address = np.uint64(buffer.__array_interface__["data"][0])
        ends = np.cumsum(self.each)[:-1]
        return HostBlock(self, address + self._starts, lambda: np.split(buffer, ends))


@dataclass(frozen=True, slots=True)
class HostBlock:
    """A block in host memory: one piece for each layer slot."""

    sizes: SlotSizes
    addresses: Addresses
    arrays: Callable[[], Block]
    """Returns the pieces as arrays. Lazy: copies by address do not need them."""


class BlockChecksummer:
    """Computes checksums and copies blocks, with the C++ library if it is available."""

    def __init__(self, copies: ChecksumCopier | None) -> None:
        """`copies`: the C++ implementation; None: numpy."""
        self._copies = copies

    def checksum(self, key: BlockKey, block: HostBlock, kind: Literal["sum", "crc32"]) -> bytes:
        """Return the checksum of a block."""
        if kind == "crc32":
            sums: Sequence[int] | npt.NDArray[np.uint64] = [
                zlib.crc32(part.data) for part in block.arrays()
            ]
        elif self._copies is None:
            sums = [_sum(part) for part in block.arrays()]
        else:
            sums = self._copies.copy(None, block.addresses, block.sizes.each)
        return _digest(key, sums, block.sizes)

    def copy(self, key: BlockKey, source: HostBlock, target: HostBlock) -> bytes:
        """Copy a block. Return the checksum ("sum") of the copied bytes."""
        if self._copies is not None:
            sums = self._copies.copy(target.addresses, source.addresses, source.sizes.each)
            return _digest(key, sums, source.sizes)
        part_sums = []
        for source_part, target_part in zip(source.arrays(), target.arrays(), strict=True):
            np.copyto(target_part, source_part)
            part_sums.append(_sum(target_part))
        return _digest(key, part_sums, source.sizes)


def checksummer_for(device: str) -> BlockChecksummer:
    """Return the checksummer of a worker. Only CPU workers compile the library for it."""
    library = load_library() if device == "cpu" else open_library(FOLDER / LIBRARY_NAME)[0]
    return BlockChecksummer(None if library is None else ChecksumCopier(library))


def _sum(part: Bytes) -> int:
    word = np.uint8 if part.nbytes % WORD_BYTES else np.uint64
    return int(np.add.reduce(part.view(word), dtype=np.uint64))


def _digest(key: BlockKey, sums: Sequence[int] | npt.NDArray[np.uint64], sizes: SlotSizes) -> bytes:
    """Return 16 bytes that depend on the key, and on the sums, sizes and order of the pieces."""
    columns = np.empty((len(sizes.each), 2), "<u8")
    columns[:, 0] = sums
    columns[:, 1] = sizes.each
    return hashlib.blake2b(
        key.group.to_bytes(4, "little") + key.key + columns.tobytes(), digest_size=16
    ).digest()
