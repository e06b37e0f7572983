"""Blocks on a device go to host memory and back packed by one launch, here through Triton's
interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from core_kernels.triton.packed_blocks import PackedBlocks

from builtin_plugins.kv_connectors.blocks import Beside, CacheBlocks
from core.testing.conformance.kv_connectors import LAYOUT


def test_what_is_looked_at_and_put_back_are_the_bytes_that_a_cpu_has_in_place() -> None:
    memory = {
        (pool, slot): torch.randint(0, 255, (6, size), dtype=torch.uint8)
        for pool in range(len(LAYOUT.pools))
        for slot, size in enumerate((48, 9))
    }
    plain = CacheBlocks(LAYOUT, memory)
    packed = CacheBlocks(LAYOUT, memory, PackedBlocks)
    assert packed.block_bytes == plain.block_bytes == [57] * len(LAYOUT.groups)
    for group in range(len(LAYOUT.groups)):
        before = [part.copy() for part in plain.look(group, 4).arrays()]
        for ours, theirs in zip(packed.look(group, 4).arrays(), before, strict=True):
            assert np.array_equal(ours, theirs)
        for number, blocks in enumerate((plain, packed)):
            for part in blocks.staging(group).arrays():
                part[:] = 100 + number
            blocks.put(group, 1 + number)
            for part in blocks.landing(group, 3 + 2 * number).arrays():
                part[:] = 110 + number
            blocks.land(group, 3 + 2 * number)
        for block, byte in ((1, 100), (2, 101), (3, 110), (5, 111)):
            assert {int(each) for part in plain.look(group, block).arrays() for each in part} == {
                byte
            }
        after = plain.look(group, 4).arrays()
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(after, before, strict=True))


def test_copies_have_a_stream_of_their_own_behind_what_steps_were_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    @contextmanager
    def entered(stream: SimpleNamespace) -> Iterator[None]:
        done.append("begin")
        yield
        done.append("end")

    own = SimpleNamespace(
        wait_stream=lambda other: done.append(f"behind {other}"),
        synchronize=lambda: done.append("waited for"),
    )
    module = SimpleNamespace(
        Stream=lambda device: own, current_stream=lambda: "the steps'", stream=entered
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    with Beside(torch.device("cuda")).behind_steps():
        done.append("copied")
    assert done == ["behind the steps'", "begin", "copied", "end", "waited for"]
    with Beside(torch.device("cpu")).behind_steps():
        done.clear()
    assert not done
