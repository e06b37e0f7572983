"""Measured peak rates of a device: memory bandwidth and matrix products of 16, 8 and 4 bits."""

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
    float4_flop_s: float = math.nan
    """Of four-bit floats with a scale for each 16."""

    @property
    def rates(self) -> Rates:
        """Return the rates for model limits."""
        return Rates(self.read_bytes_s, self.flop_s)

    def product_rate(self, bits: int) -> float:
        """Return the operations per second of products of floats of 16, 8 or 4 bits."""
        return {16: self.flop_s, 8: self.float8_flop_s, 4: self.float4_flop_s}[bits]

    def least_s(self, read_bytes: float, flop: float, *, bits: int = 16) -> float:
        """Return the minimum time of a kernel in seconds."""
        return max(read_bytes / self.read_bytes_s, flop / self.product_rate(bits))


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


def _multiplied(clock: Clock, side: int) -> tuple[float, float, float]:
    """Return operations per second in bfloat16, float8 and NVFP4, on random numbers.

    Zeros draw less power and would overestimate the rate.
    """
    a, b = (torch.randn(side, side, device=clock.device).to(torch.bfloat16) for _ in range(2))
    flop = 2 * side**3
    wide = flop / clock.seconds([lambda: a @ b])
    if clock.device == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        return wide, math.nan, math.nan
    one = torch.ones((), device=clock.device)
    (x, y) = (each.to(torch.float8_e4m3fn) for each in (a, b))
    work = partial(torch._scaled_mm, x, y.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    narrow = flop / clock.seconds([work])
    if not multiplies_blocks(clock):
        return wide, narrow, math.nan
    codes = torch.randint(0, 255, (side, side // 2), dtype=torch.uint8, device=clock.device)
    blocks = codes.view(torch.float4_e2m1fn_x2)
    scales = torch.ones(side * side // 16, device=clock.device).to(torch.float8_e4m3fn)
    work = partial(
        torch._scaled_mm, blocks, blocks.T, scale_a=scales, scale_b=scales, out_dtype=torch.bfloat16
    )
    return wide, narrow, flop / clock.seconds([work])


def multiplies_blocks(clock: Clock) -> bool:
    """Return whether the device multiplies four-bit floats with a scale for each block."""
    return clock.device == "cuda" and torch.cuda.get_device_capability() >= (10, 0)
