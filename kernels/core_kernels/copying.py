"""Copies of memory that are summed in the same pass.

Knows addresses; knows neither what lies there nor whose it is.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Addresses = npt.NDArray[np.uint64]


class SummedCopies:
    """Bound to a loaded library.

    Safe to call from several threads, which it does not keep from each other's memory.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._copy: Final = library.core_copy_summed

    def copy(
        self, target: Addresses | None, source: Addresses, sizes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint64]:
        """Copy pieces of memory, where there is a target, and return the sum of each.

        A sum is that of 64-bit words, modulo 2 ** 64, where 8 divides a piece's size, and else that
        of its bytes.
        """
        sums = np.empty(len(sizes), np.uint64)
        to = 0 if target is None else _address(target)
        self._copy(to, _address(source), _address(sizes), len(sizes), _address(sums))
        return sums


def _address(array: npt.NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
