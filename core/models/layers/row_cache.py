"""A cache of plain rows in one step: where rows are written, and where earlier ones are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from core.models.layers.query_batches import Queries, QueryBatch, SeenRows, make_batches
from core.models.layers.sparse_attention import exact_lengths

if TYPE_CHECKING:
    from core.contracts.attention import AttentionInputs


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
        self._batches: dict[tuple[SeenRows, RowsPlan | None], list[QueryBatch]] = {}

    def write(self, cache: torch.Tensor, rows: torch.Tensor) -> None:
        """Write the rows [n, size] that the tokens of `self.tokens` complete."""
        slots = self._inputs.slots[self.tokens] // self.rate
        cache.flatten(0, 1)[slots] = rows.to(cache.dtype)

    def table(self, sequence: int, count: int) -> torch.Tensor:
        """Return the block table of a sequence's first `count` rows."""
        return self._inputs.block_table[sequence, : -(-count // self._rows_per_block)]

    def batches(self, seen: SeenRows, far_plan: RowsPlan | None = None) -> list[QueryBatch]:
        """Return the queries of the step in batches, made once for all layers that see the same.

        `far_plan`: the group of the earlier rows, of which one holds `seen.rate` tokens.
        """
        key = (seen, far_plan)
        if key not in self._batches:
            far_slots = None if far_plan is None else far_plan.slots
            device = self._inputs.block_table.device
            self._batches[key] = make_batches(self.sequences, seen, self.slots, far_slots, device)
        return self._batches[key]

    def slots(self, owners: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the slots of rows of sequences [n], by their numbers [n, m]."""
        size = self._rows_per_block
        blocks = self._inputs.block_table[owners].gather(1, numbers // size).long()
        return blocks * size + numbers % size

    def gather(
        self, cache: torch.Tensor, owners: torch.Tensor, numbers: torch.Tensor
    ) -> torch.Tensor:
        """Return rows [n, m, size] of sequences [n], by their numbers [n, m]."""
        return cache.flatten(0, 1)[self.slots(owners, numbers)]
