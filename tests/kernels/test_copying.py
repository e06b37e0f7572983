"""What is copied is what was there, and sums are those that numpy finds, wherever memory begins and
ends.
"""

from __future__ import annotations

import numpy as np
import pytest
from core_kernels.copying import SummedCopies
from core_kernels.library import load_library


@pytest.fixture(scope="module")
def copies() -> SummedCopies:
    library = load_library()
    if library is None:
        pytest.skip("no C++ library on this machine")
    return SummedCopies(library)


def expected(part: np.ndarray) -> int:
    word = np.uint8 if part.nbytes % 8 else np.uint64
    return int(np.add.reduce(part.copy().view(word), dtype=np.uint64))


@pytest.mark.parametrize(
    "sizes", [[], [0], [1], [8], [63, 64, 65, 72], [4096, 24, 7, 65536, 8000], [1 << 20]]
)
@pytest.mark.parametrize("offsets", [(0, 0), (8, 16), (3, 0), (0, 5), (16, 16)])
def test_pieces_are_copied_and_summed_and_nothing_else_is_touched(
    copies: SummedCopies, sizes: list[int], offsets: tuple[int, int]
) -> None:
    numbers = np.random.default_rng(1)
    gap = 64
    room = sum(sizes) + gap * (len(sizes) + 1) + 16
    source = numbers.integers(0, 256, room, np.uint8)
    target = np.full(room, 7, np.uint8)
    source[: room // 2] |= 0x80  # sums run over
    ends = np.cumsum(np.array(sizes, np.int64) + gap)
    starts = ends - np.array(sizes, np.int64)
    places = [(start + base + offset).astype(np.uint64) for start, base, offset in (
        (starts, source.ctypes.data, offsets[0]), (starts, target.ctypes.data, offsets[1]))]  # fmt: skip
    parts = [source[start + offsets[0] :][:size] for start, size in zip(starts, sizes, strict=True)]
    wanted = np.full(room, 7, np.uint8)
    for start, part in zip(starts, parts, strict=True):
        wanted[start + offsets[1] :][: part.nbytes] = part
    for to in (None, places[1]):
        found = copies.copy(to, places[0], np.array(sizes, np.int64))
        assert found.tolist() == [expected(part) for part in parts]
        assert np.array_equal(target, np.full(room, 7, np.uint8) if to is None else wanted)
