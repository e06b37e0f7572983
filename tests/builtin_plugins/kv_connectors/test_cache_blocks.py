"""Copies of device blocks to host memory and back, with the kernel in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from core_kernels.triton.block_copy import BlockCopier

from builtin_plugins.features.kv_tiers.cache_blocks import CacheBlocks, CopyStream
from builtin_plugins.kv_connectors.conformance import LAYOUT


def test_device_blocks_match_cpu_blocks() -> None:
    memory = {
        (pool, slot): torch.randint(0, 255, (6, size), dtype=torch.uint8)
        for pool in range(len(LAYOUT.pools))
        for slot, size in enumerate((48, 9))
    }
    plain = CacheBlocks(LAYOUT, memory)
    packed = CacheBlocks(LAYOUT, memory, BlockCopier)
    assert packed.block_bytes == plain.block_bytes == [57] * len(LAYOUT.groups)
    for group in range(len(LAYOUT.groups)):
        before = [part.copy() for part in plain.read_block(group, 4).arrays()]
        for ours, theirs in zip(packed.read_block(group, 4).arrays(), before, strict=True):
            assert np.array_equal(ours, theirs)
        for number, blocks in enumerate((plain, packed)):
            for part in blocks.staging(group).arrays():
                part[:] = 100 + number
            blocks.write_staged(group, 1 + number)
            for part in blocks.destination(group, 3 + 2 * number).arrays():
                part[:] = 110 + number
            blocks.commit(group, 3 + 2 * number)
        for block, byte in ((1, 100), (2, 101), (3, 110), (5, 111)):
            parts = plain.read_block(group, block).arrays()
            assert {int(each) for part in parts for each in part} == {byte}
        after = plain.read_block(group, 4).arrays()
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(after, before, strict=True))


def test_copy_stream_waits_for_enqueued_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    @contextmanager
    def entered(stream: SimpleNamespace) -> Iterator[None]:
        done.append("begin")
        yield
        done.append("end")

    own = SimpleNamespace(
        wait_stream=lambda other: done.append(f"after {other}"),
        synchronize=lambda: done.append("synchronized"),
    )
    module = SimpleNamespace(
        Stream=lambda device: own, current_stream=lambda: "the steps'", stream=entered
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    with CopyStream(torch.device("cuda")).after_steps():
        done.append("copied")
    assert done == ["after the steps'", "begin", "copied", "end", "synchronized"]
    with CopyStream(torch.device("cpu")).after_steps():
        done.clear()
    assert not done
