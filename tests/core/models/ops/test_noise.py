"""Uniform numbers are a fixed function of (seed, position)."""

from __future__ import annotations

import torch

from core.models.ops.sampling import uniform

MASK = 2**64 - 1


def splitmix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def reference(seed: int, position: int) -> float:
    return (
        splitmix((splitmix(seed & MASK) + position * 0x9E3779B97F4A7C15) & MASK) >> 11
    ) * 2.0**-53


def test_uniform_numbers_equal_reference() -> None:
    pairs = [(s, p) for s in (0, 1, -1, 2**63 - 1, -(2**63), 12345) for p in (0, 1, 7, 131_071)]
    seeds, positions = torch.tensor(pairs).T
    assert uniform(seeds, positions).tolist() == [reference(*pair) for pair in pairs]


def test_uniform_numbers_are_uniform_over_seeds_and_positions() -> None:
    count = 40_000
    bins = 50
    seeds = torch.arange(count)
    still = torch.full((count,), 3)
    for numbers in (uniform(seeds, still), uniform(still, seeds)):
        assert 0 <= numbers.min() < numbers.max() < 1
        expected = count / bins
        chi_square = ((numbers.histc(bins, 0, 1) - expected) ** 2 / expected).sum()
        assert chi_square < 90  # 49 degrees of freedom: exceeded once in 3,000
        pairs = torch.corrcoef(torch.stack((numbers[:-1], numbers[1:])))
        assert abs(pairs[0, 1]) < 0.02
