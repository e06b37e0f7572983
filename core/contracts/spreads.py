"""Values by size, counted as a histogram has them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final


class Spread:
    """Counts values between bounds. Written by one thread, may be read by any."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(
        self, bounds: Sequence[float], counts: Sequence[int] = (), sum: float = 0.0
    ) -> None:
        self.bounds: Final = tuple(bounds)
        """Ascending; a value counts under the first that is not below it."""
        self.counts: Final = list(counts) or [0] * (len(bounds) + 1)
        """By bound, then of values above the last."""
        self.sum = sum

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, once or as often as it was seen."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times
