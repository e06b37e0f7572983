"""A cache of plain rows in one step: where rows are written, and where earlier ones are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from core.models.layers.sparse_attention import exact_lengths

if TYPE_CHECKING:
    from core.contracts.attention import AttentionInputs


class Queries(NamedTuple):
    """The tokens of one sequence in a step."""

    sequence: int
    """Number of the sequence in the step."""
    start: int
    """First token of the step."""
    end: int
    """Token of the step after the last one."""
    position: int
    """Position of the first one."""


class RowsPlan:
    """One group of plain rows in one step, for all its layers.

    A row holds `rate` tokens, and the last one completes it. Rows are numbered by sequence.
    """

    def __init__(self, inputs: AttentionInputs) -> None:
        self._inputs = inputs
        self.rate: int = getattr(inputs.spec, "rate", 1)
        self._rows_per_block = inputs.block_size // self.rate
        starts = inputs.query_starts
        ends = starts[1:]
        self.sequences = [
            Queries(index, start, end, length - (end - start))
            for index, (start, end, length) in enumerate(
                zip(starts, ends, exact_lengths(inputs), strict=False)
            )
        ]
        """The tokens of each sequence."""
        closing = [
            (each.sequence, position, each.start + position - each.position)
            for each in self.sequences
            for position in range(
                each.position + (-each.position - 1) % self.rate,
                each.position + each.end - each.start,
                self.rate,
            )
        ]
        device = inputs.block_table.device
        whole = torch.tensor(closing, dtype=torch.int64, device=device).view(-1, 3)
        self.owners, self.positions, self.tokens = whole.unbind(1)
        """Sequence, position and token of the step of each token that completes a row."""

    def write(self, cache: torch.Tensor, rows: torch.Tensor) -> None:
        """Write the rows [n, size] that the tokens of `self.tokens` complete."""
        slots = self._inputs.slots[self.tokens] // self.rate
        cache.flatten(0, 1)[slots] = rows.to(cache.dtype)

    def table(self, sequence: int, count: int) -> torch.Tensor:
        """Return the block table of a sequence's first `count` rows."""
        return self._inputs.block_table[sequence, : -(-count // self._rows_per_block)]

    def gather(
        self, cache: torch.Tensor, owners: torch.Tensor, numbers: torch.Tensor
    ) -> torch.Tensor:
        """Return rows [n, m, size] of sequences [n], by their numbers [n, m]."""
        size = self._rows_per_block
        blocks = self._inputs.block_table[owners].gather(1, numbers // size).long()
        return cache.flatten(0, 1)[blocks * size + numbers % size]

    def read(self, cache: torch.Tensor, sequence: int, first: int, end: int) -> torch.Tensor:
        """Return the rows of a sequence with the numbers `first` to `end`, without `end`."""
        numbers = torch.arange(first, end, device=cache.device)[None]
        owner = torch.tensor([sequence], device=cache.device)
        return self.gather(cache, owner, numbers)[0]
