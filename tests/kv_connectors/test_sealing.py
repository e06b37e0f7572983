"""A seal says that every byte of a block, their order and its key are those that were sealed,
whoever computes it.
"""

from __future__ import annotations

from inspect import unwrap
from typing import Any

import numpy as np
import pytest
from core_kernels.copying import SummedCopies
from core_kernels.library import load_library

from builtin_plugins.kv_connectors.sealing import Pieces, Sealer, Sizes, sealer_on
from core.api import BlockKey
from tests.kv_connectors.trial import BLOCKS, open_llm, run, settle, traffic

KEY = BlockKey(0, b"k" * 32)
SIZES = Sizes([4096, 72, 9])
PLAIN = Sealer(None)


def pieces(seed: int = 1) -> Pieces:
    return SIZES.cut(np.random.default_rng(seed).integers(0, 256, int(SIZES.each.sum()), np.uint8))


@pytest.fixture
def quick() -> Sealer:
    library = load_library()
    if library is None:
        pytest.skip("no C++ library on this machine")
    return Sealer(SummedCopies(library))


def test_the_library_and_numpy_make_the_same_seals_and_copies(quick: Sealer) -> None:
    source = pieces()
    seals = set()
    for sealer in (PLAIN, quick):
        target = pieces(2)
        seals |= {
            sealer.copy(KEY, source, target),
            sealer.seal(KEY, target, "sum"),
            sealer.seal(KEY, source, "sum"),
        }
        assert all(map(np.array_equal, target.arrays(), source.arrays()))
    assert len(seals) == 1
    assert PLAIN.seal(KEY, source, "crc32") == quick.seal(KEY, source, "crc32") not in seals


@pytest.mark.parametrize("how", ["sum", "crc32"])
def test_another_bit_order_or_key_is_another_seal(how: Any) -> None:
    block = pieces()
    seals = set()
    seals.add(PLAIN.seal(KEY, block, how))
    for part in block.arrays():
        for bit in (0, 7):
            part[len(part) // 2] ^= 1 << bit
            seals.add(PLAIN.seal(KEY, block, how))
            part[len(part) // 2] ^= 1 << bit
    swapped = Sizes([72, 4096, 9]).cut(
        np.concatenate([block.arrays()[place] for place in (1, 0, 2)])
    )
    seals.add(PLAIN.seal(KEY, swapped, how))
    seals |= {PLAIN.seal(key, block, how) for key in (BlockKey(1, KEY.key), BlockKey(0, b"l" * 32))}
    assert len(seals) == 1 + 6 + 1 + 2
    assert PLAIN.seal(KEY, block, how) in seals


def test_a_device_that_has_no_use_for_the_library_does_not_compile_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compiled() -> None:
        raise AssertionError

    monkeypatch.setattr("builtin_plugins.kv_connectors.sealing.load_library", compiled)
    assert sealer_on("cuda:0").seal(KEY, pieces(), "sum") == PLAIN.seal(KEY, pieces(), "sum")
    with pytest.raises(AssertionError):
        sealer_on("cpu")


def test_what_is_damaged_in_host_memory_is_computed_and_leaves_nothing_in_the_cache(
    expected: list[list[int]],
) -> None:
    """Numbers that are none, behind a prompt's end, would be none in what attention makes of all of
    a block.
    """
    with open_llm("offload", {"cpu_bytes_to_use": 4 << 20}) as llm:
        run(llm)
        settle(llm)
        assert llm.reset_prefix_cache()
        mover: Any = unwrap(
            dict(llm.core.executor.worker._extensions._begin)["kv_connectors"]
        ).__self__
        for place, _ in mover._store._held.values():
            place[-64:] = 0xFF
        assert run(llm)[0] == expected
        assert traffic(llm).counts.unloaded > 0
        assert traffic(llm).info()["state"] == "degraded"
        cached = [mover._incoming.look(0, block).arrays() for block in range(BLOCKS)]
        assert all(np.isfinite(part.view(np.float32)).all() for block in cached for part in block)
