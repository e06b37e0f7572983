"""What requests say about sampling, as columns by row: on the device, and on the host for those who
decide there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from core.step import NewRow
from core.worker.staging import Staging

UNASKED = -2
"""Of log-probabilities: none; -1 is all."""
COLDEST = 1e-5
"""Lower temperatures are this one; 0 is greedy and never divided by."""


class Columns:
    """Written when a row enters, by the host at once, on the device in the order of its work."""

    def __init__(self, num_rows: int, device: str) -> None:
        self.temperatures = np.zeros(num_rows)
        self.top_k = np.zeros(num_rows, dtype=np.int64)
        self.top_p = np.ones(num_rows)
        self.logprobs = np.full(num_rows, UNASKED, dtype=np.int64)
        self.prompt_lens = np.zeros(num_rows, dtype=np.int64)
        self._ints = torch.zeros((2, num_rows), dtype=torch.int64, device=device)
        self._floats = torch.ones(num_rows, dtype=torch.float32, device=device)

    def enter(self, new: Sequence[NewRow], staging: Staging) -> tuple[int, int]:
        """Take over requests; return where `write` finds them."""
        rows = [one.row for one in new]
        params = [one.sampling for one in new]
        self.temperatures[rows] = [p.temperature for p in params]
        self.top_k[rows] = [p.top_k for p in params]
        self.top_p[rows] = [p.top_p for p in params]
        self.logprobs[rows] = [UNASKED if p.logprobs is None else p.logprobs for p in params]
        self.prompt_lens[rows] = [one.prompt_len for one in new]
        ints = [*rows, *(one.seed for one in new), *(one.prompt_len for one in new)]
        return staging.put(ints), staging.put(self.temperatures[rows].clip(COLDEST).view(np.int64))

    def write(self, ints: torch.Tensor, floats: torch.Tensor) -> None:
        """Write the device's columns."""
        numbers = ints.view(3, -1)
        self._ints[:, numbers[0]] = numbers[1:]
        self._floats[numbers[0]] = floats.view(torch.float64).float()

    def of(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return seeds, prompt lengths and temperatures of rows, on the device."""
        seeds, prompt_lens = self._ints.index_select(1, rows)
        return seeds, prompt_lens, self._floats.index_select(0, rows)
