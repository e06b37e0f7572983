"""Measured peak rates of a device: memory bandwidth and matrix products of 16 and 8 bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.gpu.clock import Clock
from benchmarks.peers.limits import Rates


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Peak rates; NaN for unmeasured or unsupported ones."""

    read_bytes_s: float
    copied_bytes_s: float
    """Bytes per second of a copy, read and write together."""
    flop_s: float
    """Operations per second of bfloat16 products."""
    float8_flop_s: float

    @property
    def rates(self) -> Rates:
        """Return the rates for model limits."""
        return Rates(self.read_bytes_s, self.flop_s)

    def least_s(self, read_bytes: float, flop: float, *, of_float8: bool = False) -> float:
        """Return the minimum time of a kernel in seconds."""
        rate = self.float8_flop_s if of_float8 else self.flop_s
        return max(read_bytes / self.read_bytes_s, flop / rate)


def measure(clock: Clock, num_bytes: int, side: int) -> Ceilings:
    """Measure with tensors of a given size, and square products."""
    return Ceilings(*_moved(clock, num_bytes), *_multiplied(clock, side))


def _moved(clock: Clock, num_bytes: int) -> tuple[float, float]:
    """Return the read and the copy bandwidth in bytes per second."""
    source = torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, device=clock.device)
    target = torch.empty_like(source)
    words = source.view(torch.int32)
    return num_bytes / clock.seconds([words.amax]), 2 * num_bytes / clock.seconds(
        [lambda: target.copy_(source)]
    )


def _multiplied(clock: Clock, side: int) -> tuple[float, float]:
    """Return operations per second in bfloat16 and float8, on random numbers.

    Zeros draw less power and would overestimate the rate.
    """
    a, b = (torch.randn(side, side, device=clock.device).to(torch.bfloat16) for _ in range(2))
    flop = 2 * side**3
    wide = flop / clock.seconds([lambda: a @ b])
    if clock.device == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        return wide, math.nan
    one = torch.ones((), device=clock.device)
    (x, y) = (each.to(torch.float8_e4m3fn) for each in (a, b))
    work = partial(torch._scaled_mm, x, y.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    return wide, flop / clock.seconds([work])
