"""Memory copies with a checksum in the same pass.

Knows addresses only.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Addresses = npt.NDArray[np.uint64]


class ChecksumCopier:
    """Checksum copies of a loaded library.

    Thread-safe, but does not protect the memory from concurrent writers.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._copy: Final = library.core_checksum_copy

    def copy(
        self, target: Addresses | None, source: Addresses, sizes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint64]:
        """Copy memory ranges (if there is a target) and return the checksum of each.

        A checksum is the sum of 64-bit words modulo 2 ** 64 if 8 divides the size, else the sum of
        bytes.
        """
        sums = np.empty(len(sizes), np.uint64)
        to = 0 if target is None else _address(target)
        self._copy(to, _address(source), _address(sizes), len(sizes), _address(sums))
        return sums


def _address(array: npt.NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
