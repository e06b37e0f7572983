"""Plain rows in a paged cache, one for each token or one for several."""

from __future__ import annotations

from itertools import accumulate

import torch
from hypothesis import given
from hypothesis import strategies as st

from core.contracts.attention import AttentionInputs
from core.model_spec.kv import IndexKeys
from core.models.layers.row_cache import RowsPlan

BLOCKS = 12
"""Blocks of a sequence."""


class Rows:
    """Sequences; a row holds the sequence and the position of the token that completed it."""

    def __init__(self, rate: int, rows_per_block: int, count: int) -> None:
        self.rate = rate
        self.block_size = rate * rows_per_block
        order = torch.randperm(count * BLOCKS, generator=torch.Generator().manual_seed(count))
        self.table = order.view(count, BLOCKS).to(torch.int32)
        self.cache = torch.full((count * BLOCKS, rows_per_block, 2), -1.0)
        self.lengths = [0] * count

    def step(self, counts: list[tuple[int, int]]) -> RowsPlan:
        """Write the rows of a step with some tokens of some sequences; return its plan."""
        slots = []
        for sequence, count in counts:
            first = self.lengths[sequence]
            self.lengths[sequence] += count
            slots += [
                int(self.table[sequence, at // self.block_size]) * self.block_size
                + at % self.block_size
                for at in range(first, first + count)
            ]
        chosen = [sequence for sequence, _ in counts]
        inputs = AttentionInputs(
            query_starts=[0, *accumulate(count for _, count in counts)],
            kv_lens=[self.lengths[sequence] for sequence in chosen],
            block_table=self.table[chosen],
            slots=torch.tensor(slots),
            block_size=self.block_size,
            spec=IndexKeys(1, 2, "float32", top_k=0, rate=self.rate),
        )
        plan = RowsPlan(inputs)
        owners = torch.tensor(chosen)[plan.owners]
        plan.write(self.cache, torch.stack([owners, plan.positions], 1).float())
        return plan


@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.lists(st.dictionaries(st.integers(0, 2), st.integers(1, 9), min_size=1), max_size=5),
)
def test_rows_are_found_again_by_their_numbers(
    rate: int, rows_per_block: int, steps: list[dict[int, int]]
) -> None:
    rows = Rows(rate, rows_per_block, 3)
    for step in steps:
        within = {
            sequence: count
            for sequence, count in step.items()
            if rows.lengths[sequence] + count <= BLOCKS * rows.block_size
        }
        if not within:
            continue
        plan = rows.step(list(within.items()))
        for index, sequence in enumerate(within):
            complete = rows.lengths[sequence] // rate
            numbers = torch.arange(complete)[None]
            found = plan.gather(rows.cache, torch.tensor([index]), numbers)[0].tolist()
            assert found == [[sequence, rate * (row + 1) - 1] for row in range(complete)]


def test_gathered_rows_may_belong_to_several_sequences() -> None:
    rows = Rows(2, 2, 3)
    plan = rows.step([(2, 9), (0, 4)])
    found = plan.gather(rows.cache, torch.tensor([1, 0]), torch.tensor([[1, 0], [3, 1]]))
    assert found.tolist() == [[[0, 3], [0, 1]], [[2, 7], [2, 3]]]
