"""What a device gives today: bytes that are read and copied in a second, products of 16 and of 8
bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.gpu.clock import Clock
from benchmarks.peers.limits import Rates


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Not a number where nothing was measured, or the device has no such thing."""

    read_bytes_s: float
    copied_bytes_s: float
    """Read and written together."""
    flop_s: float
    """Of bfloat16."""
    float8_flop_s: float

    @property
    def rates(self) -> Rates:
        """Return what limits of models follow from."""
        return Rates(self.read_bytes_s, self.flop_s)

    def least_s(self, read_bytes: float, flop: float, *, of_float8: bool = False) -> float:
        """Return the least time of a kernel."""
        rate = self.float8_flop_s if of_float8 else self.flop_s
        return max(read_bytes / self.read_bytes_s, flop / rate)


def measure(clock: Clock, num_bytes: int, side: int) -> Ceilings:
    """Measure with tensors of so many bytes, and square products."""
    return Ceilings(*_moved(clock, num_bytes), *_multiplied(clock, side))


def _moved(clock: Clock, num_bytes: int) -> tuple[float, float]:
    """Return the bytes a second that are read, and that are copied."""
    source = torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, device=clock.device)
    target = torch.empty_like(source)
    words = source.view(torch.int32)
    return num_bytes / clock.seconds([words.amax]), 2 * num_bytes / clock.seconds(
        [lambda: target.copy_(source)]
    )


def _multiplied(clock: Clock, side: int) -> tuple[float, float]:
    """Return operations a second with bfloat16 and with eight-bit floats; of random numbers, since
    zeros take less power.
    """
    a, b = (torch.randn(side, side, device=clock.device).to(torch.bfloat16) for _ in range(2))
    flop = 2 * side**3
    wide = flop / clock.seconds([lambda: a @ b])
    if clock.device == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        return wide, math.nan
    one, (x, y) = (
        torch.ones((), device=clock.device),
        (each.to(torch.float8_e4m3fn) for each in (a, b)),
    )
    work = partial(torch._scaled_mm, x, y.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    return wide, flop / clock.seconds([work])
