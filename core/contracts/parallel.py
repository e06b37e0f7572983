"""The ranks that hold one model: those that split every layer, and the stages that share out the
layers.

The classes here are alone and do nothing; those that communicate are in `core.models.layers.collective`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import ModelError

if TYPE_CHECKING:
    import torch


class ParallelGroup:
    """This rank's place among those that split the model.

    Subclasses communicate; this one is alone.
    """

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
                f"{what} {total} does not divide over {self.size} ranks; use a "
                "--tensor-parallel-size that divides it."
            )
        return total // self.size

    def own(self, size: int, parts: int | None = None) -> slice:
        """Return which of `size` rows are this rank's, where `parts` ranks share them and the
        others hold copies.
        """
        parts = parts or self.size
        length = size // parts
        first = self.rank * parts // self.size * length
        return slice(first, first + length)

    def cut(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        """Return this rank's part of a whole checkpoint tensor along `axis`, as a view."""
        if self.size == 1:
            return tensor
        length = tensor.shape[axis] // self.size
        return tensor.narrow(axis, self.rank * length, length)


class Pipeline:
    """This rank's place in the chain of stages that share out the layers.

    Subclasses communicate; this one is alone.
    """

    def __init__(self, size: int = 1, rank: int = 0) -> None:
        self.size = size
        self.rank = rank
        self.is_first = rank == 0
        """It embeds tokens."""
        self.is_last = rank == size - 1
        """It has the head, and samples."""

    def layers(self, total: int) -> range:
        """Return the layers of this stage; the first ones take one more where they do not divide."""
        each, more = divmod(total, self.size)
        start = self.rank * each + min(self.rank, more)
        return range(start, start + each + (self.rank < more))

    def send(self, x: torch.Tensor) -> None:
        """Give x to the next stage."""

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the stage before sends; x has its shape and may be overwritten."""
        return x

    def from_last(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last stage's x on every stage; each calls it with one of equal shape, which
        may be overwritten.
        """
        return x
