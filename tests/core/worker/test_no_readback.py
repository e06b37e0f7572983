"""The `no_readback` kit detects every device synchronization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from core.testing.no_readback import ReadBack, no_readback

NUMBERS = torch.arange(4.0)
MASK = NUMBERS > 1


@pytest.mark.parametrize(
    "read",
    [
        lambda: NUMBERS[0].item(),
        lambda: float(NUMBERS[1]),
        lambda: int(NUMBERS[1]),
        lambda: bool(MASK[0]),
        lambda: NUMBERS.tolist(),
        lambda: NUMBERS.numpy(),
        lambda: NUMBERS.cpu(),
        lambda: NUMBERS[MASK],
        lambda: NUMBERS.clone().__setitem__(MASK, NUMBERS[:2]),
        lambda: MASK.nonzero(),
        lambda: torch.where(MASK),
        lambda: NUMBERS.masked_select(MASK),
        lambda: NUMBERS.unique(),
        lambda: NUMBERS.repeat_interleave(MASK.long()),
        lambda: torch.equal(NUMBERS, NUMBERS),
    ],
)
def test_device_read_raises(read: Callable[[], Any]) -> None:
    with pytest.raises(ReadBack), no_readback():
        read()


@pytest.mark.parametrize(
    "work",
    [
        lambda: torch.tensor([1, 2]).to("cpu"),
        lambda: NUMBERS.where(MASK, 0.0),
        lambda: NUMBERS.masked_fill(MASK, 0.0),
        lambda: NUMBERS[[0, 2]],
        lambda: NUMBERS[torch.tensor([0, 2])],
        lambda: NUMBERS.repeat_interleave(2),
        lambda: NUMBERS.repeat_interleave(MASK.long(), output_size=2),
        lambda: NUMBERS.clone().fill_(3),
    ],
)
def test_device_work_passes(work: Callable[[], Any]) -> None:
    with no_readback():
        work()
