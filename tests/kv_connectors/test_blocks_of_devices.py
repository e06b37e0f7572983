"""Blocks on a device go to host memory and back packed by one launch, here through Triton's interpreter."""

from __future__ import annotations

import numpy as np
import torch
from core_kernels.triton.packed_blocks import PackedBlocks

from builtin_plugins.kv_connectors.blocks import CacheBlocks
from core.testing.conformance.kv_connectors import LAYOUT


def test_what_is_looked_at_and_put_back_are_the_bytes_that_a_cpu_has_in_place() -> None:
    memory = {
        (pool, slot): torch.randint(0, 255, (6, size), dtype=torch.uint8)
        for pool in range(len(LAYOUT.pools))
        for slot, size in enumerate((48, 9))
    }
    plain, packed = CacheBlocks(LAYOUT, memory), CacheBlocks(LAYOUT, memory, PackedBlocks)
    assert packed.block_bytes == plain.block_bytes == [57] * len(LAYOUT.groups)
    for group in range(len(LAYOUT.groups)):
        before = [part.copy() for part in plain.look(group, 4)]
        for ours, theirs in zip(packed.look(group, 4), before, strict=True):
            assert np.array_equal(ours, theirs)
        for number, blocks in enumerate((plain, packed)):
            for part in blocks.staging(group):
                part[:] = 100 + number
            blocks.put(group, 1 + number)
        assert [{int(byte) for part in plain.look(group, block) for byte in part} for block in (1, 2)] == [{100}, {101}]
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(plain.look(group, 4), before, strict=True))
