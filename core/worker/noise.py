"""Sampling noise as a function of (seed, position): one uniform number per token, alike on every device.

SplitMix64 (Steele, Lea, Flood 2014) over a mixed seed; integer arithmetic wraps modulo 2**64, which signed
64-bit tensors do as well.
"""

from __future__ import annotations

from typing import Final

import torch


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


GOLDEN: Final = _signed(0x9E3779B97F4A7C15)
FIRST: Final = _signed(0xBF58476D1CE4E5B9)
SECOND: Final = _signed(0x94D049BB133111EB)


def uniform(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return numbers in [0, 1), float64 [n], for int64 seeds and positions [n]."""
    mixed = _mix(_mix(seeds) + positions * GOLDEN)
    return _shift(mixed, 11).to(torch.float64) * 2.0**-53


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = x + GOLDEN
    x = (x ^ _shift(x, 30)) * FIRST
    x = (x ^ _shift(x, 27)) * SECOND
    return x ^ _shift(x, 31)


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right without sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
