"""The seal by which what comes back is known to be what was sent, and copies that make it in the
same pass over memory.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt
from core_kernels.build import FOLDER, LIBRARY_NAME
from core_kernels.copying import Addresses, SummedCopies
from core_kernels.library import load_library, open_library

from core.api import BlockKey

if TYPE_CHECKING:
    from core.contracts.kv_connectors import Block, Bytes

WORD_BYTES: Final = 8


class Sizes:
    """Bytes of the pieces that blocks of a KV group consist of: one for each layer slot."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.each: Final = np.array(sizes, np.int64)
        self._starts: Final = (np.cumsum(self.each) - self.each).astype(np.uint64)

    def cut(self, buffer: Bytes) -> Pieces:
        """Return a buffer in such pieces."""
        address = np.uint64(buffer.__array_interface__["data"][0])
        ends = np.cumsum(self.each)[:-1]
        return Pieces(self, address + self._starts, lambda: np.split(buffer, ends))


@dataclass(frozen=True, slots=True)
class Pieces:
    """A block in host memory, as it lies there."""

    sizes: Sizes
    addresses: Addresses
    arrays: Callable[[], Block]
    """Returns them as what stores read and write; whoever copies by addresses does without."""


class Sealer:
    """Copies and seals, by the C++ library where there is one."""

    def __init__(self, copies: SummedCopies | None) -> None:
        self._copies = copies

    def seal(self, key: BlockKey, pieces: Pieces, how: Literal["sum", "crc32"]) -> bytes:
        """Return the seal of a block where it lies."""
        if how == "crc32":
            found: Sequence[int] | npt.NDArray[np.uint64] = [
                zlib.crc32(part.data) for part in pieces.arrays()
            ]
        elif self._copies is None:
            found = [_sum(part) for part in pieces.arrays()]
        else:
            found = self._copies.copy(None, pieces.addresses, pieces.sizes.each)
        return _digest(key, found, pieces.sizes)

    def copy(self, key: BlockKey, source: Pieces, target: Pieces) -> bytes:
        """Copy a block, and return the seal ("sum") of what was copied."""
        if self._copies is not None:
            found = self._copies.copy(target.addresses, source.addresses, source.sizes.each)
            return _digest(key, found, source.sizes)
        sums = []
        for part, place in zip(source.arrays(), target.arrays(), strict=True):
            np.copyto(place, part)
            sums.append(_sum(place))
        return _digest(key, sums, source.sizes)


def sealer_on(device: str) -> Sealer:
    """Return the sealer of a worker.

    On devices that compute nothing by the library it is not compiled for this alone.
    """
    library = load_library() if device == "cpu" else open_library(FOLDER / LIBRARY_NAME)[0]
    return Sealer(None if library is None else SummedCopies(library))


def _sum(part: Bytes) -> int:
    word = np.uint8 if part.nbytes % WORD_BYTES else np.uint64
    return int(np.add.reduce(part.view(word), dtype=np.uint64))


def _digest(key: BlockKey, found: Sequence[int] | npt.NDArray[np.uint64], sizes: Sizes) -> bytes:
    """Return 16 bytes that are others where a number found, the order of the pieces, or the key is
    another.
    """
    told = np.empty((len(sizes.each), 2), "<u8")
    told[:, 0], told[:, 1] = found, sizes.each
    return hashlib.blake2b(
        key.group.to_bytes(4, "little") + key.key + told.tobytes(), digest_size=16
    ).digest()
