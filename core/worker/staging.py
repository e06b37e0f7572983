"""Numbers of a step on their way to the device: gathered on the host, copied in one piece.

Knows no step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np
import numpy.typing as npt
import torch

Ints = npt.NDArray[np.int64]
Staged = tuple[torch.Tensor, list[int]]
"""Numbers, and how many belong together."""


class Staging:
    """A ring of host buffers and one buffer on the device, in which every step finds its numbers at
    the same places.
    """

    def __init__(self, device: str, num_steps: int, size: int) -> None:
        """While a step is prepared, up to `num_steps` others may not have been copied yet."""
        self._pinned = torch.device(device).type == "cuda"
        self._hosts = [self._host(size) for _ in range(num_steps + 1)]
        self._turns = cycle(range(num_steps + 1))
        self._device = torch.zeros(size, dtype=torch.int64, device=device)

    def _host(self, size: int) -> tuple[torch.Tensor, Ints]:
        if self._pinned:
            pinned = torch.zeros(size, dtype=torch.int64, pin_memory=True)
            return pinned, pinned.numpy()
        numbers = np.zeros(size, dtype=np.int64)
        return torch.from_numpy(numbers), numbers

    def begin(self) -> None:
        """Start with the next step's numbers."""
        self._at = next(self._turns)
        self._used = 0
        self._sizes = list[int]()
        self._numbers = self._hosts[self._at][1]

    def put(self, numbers: Ints | Sequence[int]) -> int:
        """Add numbers; return the place of their tensor in what `send` returns."""
        count = len(numbers)
        end = self._used + count
        if end > len(self._numbers):
            grown = self._host(2 * end)
            grown[1][: self._used] = self._numbers[: self._used]
            self._hosts[self._at], self._numbers = grown, grown[1]
        self._numbers[self._used : end] = numbers
        self._used = end
        self._sizes.append(count)
        return len(self._sizes) - 1

    def end(self) -> Staged:
        """Return the step's numbers, on the host."""
        return self._hosts[self._at][0][: self._used], self._sizes

    def send(self, staged: Staged) -> Sequence[torch.Tensor]:
        """Return them on the device, in the order of its work."""
        numbers, sizes = staged
        if len(numbers) > len(self._device):
            self._device = self._device.new_zeros(2 * len(numbers))
        return torch.split(self._device[: len(numbers)].copy_(numbers, non_blocking=True), sizes)
