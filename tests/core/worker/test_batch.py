"""The persistent batch matches a naive rebuild from all plans so far."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.model_spec.kv import FullAttention, GroupLayout, KVLayout, PoolLayout, SlidingWindow
from core.step import NewRow, StepPlan
from core.types import SamplingParams
from core.worker.batch import InputBatch
from core.worker.inputs import StepInputs

ROWS = 4
MAX_LEN = 40
SIZES = (4, 8)
LAYOUT = KVLayout(
    groups=[
        GroupLayout(FullAttention(1, 8, "float32"), [0], SIZES[0], 0),
        GroupLayout(SlidingWindow(1, 8, "float32", window=8), [1], SIZES[1], 0),
    ],
    pools=[PoolLayout(1000, 1024, 1)],
    hash_block_size=4,
)


@dataclass
class Held:
    """Expected contents of one row."""

    tokens: list[int]
    tables: list[list[int]]
    computed: int = 0


class Naive:
    """Builds random plans and the expected contents."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.held: dict[int, Held] = {}
        self.step = 0

    def plan(self) -> StepPlan:
        ended = [row for row in self.held if self.random.random() < 0.2]
        for row in ended:
            del self.held[row]
        free = [row for row in range(ROWS) if row not in self.held]
        new = [self._new(row) for row in free if self.random.random() < 0.5]
        fresh = {row.row for row in new}
        rows = []
        starts = []
        counts = []
        blocks = []
        for row, held in self.random.sample(sorted(self.held.items()), len(self.held)):
            left = len(held.tokens) - held.computed
            if not left or self.random.random() < 0.2:
                continue
            count = self.random.randint(1, left)
            for group, size in enumerate(SIZES):
                more = self._blocks(-(-(held.computed + count) // size) - len(held.tables[group]))
                held.tables[group] += more
                if more and row not in fresh:
                    blocks.append((row, group, list(more)))
                elif more:
                    new[[n.row for n in new].index(row)].blocks[group].extend(more)
            rows.append(row)
            starts.append(held.computed)
            counts.append(count)
            held.computed += count
        self.step += 1
        samples = [
            i for i, row in enumerate(rows) if self.held[row].computed == len(self.held[row].tokens)
        ]
        return StepPlan(self.step, ended, new, blocks, rows, starts, counts, samples)

    def _new(self, row: int) -> NewRow:
        tokens = [self.random.randrange(100) for _ in range(self.random.randint(1, 12))]
        self.held[row] = Held(tokens, [[], []])
        return NewRow(
            row,
            f"r{self.step}-{row}",
            list(tokens),
            len(tokens),
            SamplingParams(),
            row,
            (),
            [[], []],
        )

    def _blocks(self, count: int) -> list[int]:
        return [self.random.randrange(1, 1000) for _ in range(max(0, count))]

    def sampled(self, plan: StepPlan, batch: InputBatch) -> None:
        """Write a random token for each sampling row."""
        for i in plan.samples:
            held = self.held[plan.rows[i]]
            if len(held.tokens) < MAX_LEN:
                held.tokens.append(self.random.randrange(100))
                batch.token_ids[plan.rows[i], len(held.tokens) - 1] = held.tokens[-1]


def check(plan: StepPlan, inputs: StepInputs, groups: list[Any], held: dict[int, Held]) -> None:
    ids = []
    positions = []
    for row, start, count in zip(plan.rows, plan.starts, plan.counts, strict=True):
        ids += held[row].tokens[start : start + count]
        positions += range(start, start + count)
    assert inputs.input_ids.tolist() == ids
    assert inputs.positions.tolist() == positions
    for group, size in enumerate(SIZES):
        got = groups[group]
        assert got.query_starts == [sum(plan.counts[:i]) for i in range(len(plan.rows) + 1)]
        assert got.kv_lens == [s + c for s, c in zip(plan.starts, plan.counts, strict=True)]
        slots = []
        for i, row in enumerate(plan.rows):
            table = held[row].tables[group]
            used = -(-got.kv_lens[i] // size)
            assert got.block_table[i, :used].tolist() == table[:used]
            slots += [
                table[p // size] * size + p % size for p in range(plan.starts[i], got.kv_lens[i])
            ]
        assert got.slots.tolist() == slots
        assert (got.slots.dtype, got.block_table.dtype) == (torch.int64, torch.int32)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), steps=st.integers(1, 25))
def test_batch_matches_a_naive_rebuild_after_random_plans(seed: int, steps: int) -> None:
    naive = Naive(seed)
    batch = InputBatch(ROWS, MAX_LEN, LAYOUT, "cpu")
    for _ in range(steps):
        plan = naive.plan()
        inputs = batch.prepare(plan)
        batch.upload(inputs)
        if plan.rows:
            check(plan, inputs, batch.gather(inputs), naive.held)
            naive.sampled(plan, batch)
        for row, held in naive.held.items():
            assert batch.token_ids[row, : len(held.tokens)].tolist() == held.tokens
            assert [
                batch.tables[group][row, : batch.block_tables.length(group, row)].tolist()
                for group in range(len(SIZES))
            ] == held.tables
        assert [row for row in range(ROWS) if batch.requests[row] is not None] == sorted(naive.held)
