"""The ranks that split every layer of one model. A group of one does nothing."""

from __future__ import annotations

import torch

from core.errors import ModelError


class ParallelGroup:
    """This rank's place among those that split the model. Subclasses communicate; this one is alone."""

    def __init__(self, size: int = 1, rank: int = 0) -> None:
        self.size = size
        self.rank = rank

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of x over the ranks; x may be overwritten."""
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the ranks' x one after the other along the last dimension."""
        return x

    def share(self, total: int, what: str) -> int:
        """Return this rank's part of `total`. Raises `ModelError` when the ranks do not divide it."""
        if total % self.size:
            raise ModelError(
                f"{what} {total} does not divide over {self.size} ranks; use a --tensor-parallel-size that divides it."
            )
        return total // self.size

    def cut(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        """Return this rank's part of a whole checkpoint tensor along `axis`, as a view."""
        if self.size == 1:
            return tensor
        length = tensor.shape[axis] // self.size
        return tensor.narrow(axis, self.rank * length, length)
