"""Parallel groups: tensor-parallel ranks and pipeline stages.

The classes here are for a single rank; `core.models.layers.parallel` has those that
communicate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from core.errors import ModelError

if TYPE_CHECKING:
    import torch


class ParallelGroup:
    """The tensor-parallel group of this rank; subclasses communicate."""

    def __init__(self, size: int = 1, rank: int = 0) -> None:
        self.size = size
        self.rank = rank

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of x over the ranks; x may be overwritten."""
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the ranks' x concatenated along the last dimension."""
        return x

    def share(self, total: int, what: str) -> int:
        """Return this rank's part of `total`.

        Raises `ModelError` if it is not divisible.
        """
        if total % self.size:
            raise ModelError(
                f"{what} {total} does not divide over {self.size} ranks; "
                "use a --tensor-parallel-size that divides it."
            )
        return total // self.size

    def own(self, size: int, parts: int | None = None) -> slice:
        """Return this rank's slice of `size` rows, of which `parts` ranks
        share (default: all).

        Other ranks hold copies.
        """
        parts = parts or self.size
        length = size // parts
        first = self.rank * parts // self.size * length
        return slice(first, first + length)

    def cut(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        """Return this rank's slice of a whole checkpoint tensor along `axis`,
        as a view.
        """
        if self.size == 1:
            return tensor
        length = tensor.shape[axis] // self.size
        return tensor.narrow(axis, self.rank * length, length)


class Pipeline:
    """The pipeline stage of this rank; subclasses communicate."""

    def __init__(self, size: int = 1, rank: int = 0, partition: Sequence[int] = ()) -> None:
        """`partition`: number of layers of each stage; empty: equal numbers."""
        self.size = size
        self.rank = rank
        self._partition = partition
        self.is_first = rank == 0
        """True: it embeds the tokens."""
        self.is_last = rank == size - 1
        """True: it has the head, and samples."""

    def layers(self, total: int) -> range:
        """Return the layers of this stage; of equal numbers, the first stages get the rest."""
        if self._partition:
            start = sum(self._partition[: self.rank])
            return range(start, start + self._partition[self.rank])
        each, more = divmod(total, self.size)
        start = self.rank * each + min(self.rank, more)
        return range(start, start + each + (self.rank < more))

    def send(self, x: torch.Tensor) -> None:
        """Start to send x, which must not be changed afterwards, to the next stage."""

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        """Return the previous stage's tensor; x has its shape and may be
        overwritten.
        """
        return x

    def from_last(self, x: torch.Tensor) -> Callable[[], object]:
        """Start to overwrite x on every stage with the last stage's x, which has the same shape.

        Returns a function that waits for it, from any thread.
        """
        return lambda: None
