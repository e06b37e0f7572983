"""Checksums cover every byte of a block, their order and its key, in both implementations."""

from __future__ import annotations

from inspect import unwrap
from typing import Any

import numpy as np
import pytest
from core_kernels.checksum_copy import ChecksumCopier
from core_kernels.library import load_library

from builtin_plugins.features.kv_tiers.checksum import (
    BlockChecksummer,
    HostBlock,
    SlotSizes,
    checksummer_for,
)
from builtin_plugins.kv_connectors.api import BlockKey
from tests.builtin_plugins.kv_connectors.small_engines import (
    BLOCKS,
    only_tier,
    open_llm,
    run,
    settle,
)

KEY = BlockKey(0, b"k" * 32)
SIZES = SlotSizes([4096, 72, 9])
NUMPY = BlockChecksummer(None)


def make_block(seed: int = 1) -> HostBlock:
    numbers = np.random.default_rng(seed)
    return SIZES.split(numbers.integers(0, 256, int(SIZES.each.sum()), np.uint8))


@pytest.fixture
def library() -> BlockChecksummer:
    loaded = load_library()
    if loaded is None:
        pytest.skip("no C++ library on this machine")
    return BlockChecksummer(ChecksumCopier(loaded))


def test_library_and_numpy_checksums_match(library: BlockChecksummer) -> None:
    source = make_block()
    checksums = set()
    for checksummer in (NUMPY, library):
        target = make_block(2)
        checksums |= {
            checksummer.copy(KEY, source, target),
            checksummer.checksum(KEY, target, "sum"),
            checksummer.checksum(KEY, source, "sum"),
        }
        assert all(map(np.array_equal, target.arrays(), source.arrays()))
    assert len(checksums) == 1
    crc32 = NUMPY.checksum(KEY, source, "crc32")
    assert crc32 == library.checksum(KEY, source, "crc32")
    assert crc32 not in checksums


@pytest.mark.parametrize("kind", ["sum", "crc32"])
def test_checksum_depends_on_bits_order_and_key(kind: Any) -> None:
    block = make_block()
    checksums = set()
    checksums.add(NUMPY.checksum(KEY, block, kind))
    for part in block.arrays():
        for bit in (0, 7):
            part[len(part) // 2] ^= 1 << bit
            checksums.add(NUMPY.checksum(KEY, block, kind))
            part[len(part) // 2] ^= 1 << bit
    swapped = SlotSizes([72, 4096, 9]).split(
        np.concatenate([block.arrays()[index] for index in (1, 0, 2)])
    )
    checksums.add(NUMPY.checksum(KEY, swapped, kind))
    for key in (BlockKey(1, KEY.key), BlockKey(0, b"l" * 32)):
        checksums.add(NUMPY.checksum(key, block, kind))
    assert len(checksums) == 1 + 6 + 1 + 2
    assert NUMPY.checksum(KEY, block, kind) in checksums


def test_gpu_worker_does_not_compile_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compiled() -> None:
        raise AssertionError

    monkeypatch.setattr("builtin_plugins.features.kv_tiers.checksum.load_library", compiled)
    block = make_block()
    on_gpu = checksummer_for("cuda:0").checksum(KEY, block, "sum")
    assert on_gpu == NUMPY.checksum(KEY, block, "sum")
    with pytest.raises(AssertionError):
        checksummer_for("cpu")


def test_damaged_host_memory_is_recomputed_and_zeroed(
    expected: list[list[int]],
) -> None:
    """NaN after the prompt's end would spread, because attention reads whole blocks."""
    with open_llm("offload", {"cpu_bytes_to_use": 4 << 20}) as llm:
        run(llm)
        settle(llm)
        assert llm.reset_prefix_cache()
        begin_methods = dict(llm.core.executor.worker._extensions._begin)
        worker: Any = unwrap(begin_methods["kv_connectors"]).__self__
        for buffer, _ in worker._store._held.values():
            buffer[-64:] = 0xFF
        assert run(llm)[0] == expected
        assert only_tier(llm).status.counts.load_failures > 0
        assert only_tier(llm).status.info()["state"] == "degraded"
        cached = [worker._incoming.read_block(0, block).arrays() for block in range(BLOCKS)]
        assert all(np.isfinite(part.view(np.float32)).all() for block in cached for part in block)
