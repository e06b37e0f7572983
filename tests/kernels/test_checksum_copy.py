"""What is copied is what was there, and sums are those that numpy finds, wherever memory begins and
ends.
"""

from __future__ import annotations

import numpy as np
import pytest
from core_kernels.checksum_copy import ChecksumCopier
from core_kernels.library import load_library


@pytest.fixture(scope="module")
def copies() -> ChecksumCopier:
    library = load_library()
    if library is None:
        pytest.skip("no C++ library on this machine")
    return ChecksumCopier(library)


def expected(part: np.ndarray) -> int:
    word = np.uint8 if part.nbytes % 8 else np.uint64
    return int(np.add.reduce(part.copy().view(word), dtype=np.uint64))


@pytest.mark.parametrize(
    "sizes", [[], [0], [1], [8], [63, 64, 65, 72], [4096, 24, 7, 65536, 8000], [1 << 20]]
)
@pytest.mark.parametrize("offsets", [(0, 0), (8, 16), (3, 0), (0, 5), (16, 16)])
def test_checksum_copy_copies_and_sums_only_its_pieces(
    copies: ChecksumCopier, sizes: list[int], offsets: tuple[int, int]
) -> None:
    numbers = np.random.default_rng(1)
    gap = 64
    room = sum(sizes) + gap * (len(sizes) + 1) + 16
    source = numbers.integers(0, 256, room, np.uint8)
    target = np.full(room, 7, np.uint8)
    source[: room // 2] |= 0x80  # sums run over
    ends = np.cumsum(np.array(sizes, np.int64) + gap)
    starts = ends - np.array(sizes, np.int64)
    addresses = [
        (starts + memory.ctypes.data + offset).astype(np.uint64)
        for memory, offset in ((source, offsets[0]), (target, offsets[1]))
    ]
    parts = [source[start + offsets[0] :][:size] for start, size in zip(starts, sizes, strict=True)]
    copied = np.full(room, 7, np.uint8)
    for start, part in zip(starts, parts, strict=True):
        copied[start + offsets[1] :][: part.nbytes] = part
    for to in (None, addresses[1]):
        found = copies.copy(to, addresses[0], np.array(sizes, np.int64))
        assert found.tolist() == [expected(part) for part in parts]
        assert np.array_equal(target, np.full(room, 7, np.uint8) if to is None else copied)
