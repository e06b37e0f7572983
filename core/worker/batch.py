"""The persistent batch: what the worker remembers of every row between steps, updated by difference.

Buffers have their largest size from the start and are filled in place. Rows belong to the scheduler: a row
keeps its request until a plan ends it, so nothing moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch

from core.contracts import AttentionInputs
from core.kv_spec import CrossAttention, KVLayout, RecurrentState
from core.nn.state import StatePlan, plan_states
from core.step import EncoderInput, NewRow, StepPlan

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step's tokens, on the device: those of the plan's steady rows, then of the others."""

    rows: list[int]
    starts: list[int]
    counts: list[int]
    samples: list[int]
    """Indices into `rows` of those that sample."""
    input_ids: torch.Tensor
    positions: torch.Tensor
    query_starts: list[int]
    """Cumulative token counts, length num_seqs + 1."""
    groups: list[AttentionInputs | StatePlan]
    """Per KV group: where its keys and values are, or its states."""
    encoder_inputs: list[EncoderInput]
    """Of the rows that enter."""


class Batch:
    """Rows of the worker: tokens, block tables, and the requests they belong to."""

    def __init__(self, max_num_seqs: int, max_model_len: int, layout: KVLayout, device: str) -> None:
        self._device = device
        self._layout = layout
        self.token_ids = torch.zeros((max_num_seqs, max_model_len), dtype=torch.int64, device=device)
        """Every row's tokens by position, sampled ones included; stale beyond what is known."""
        self.seeds = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self.prompt_lens = [0] * max_num_seqs
        self.requests: list[NewRow | None] = [None] * max_num_seqs
        self._ends = [0] * max_num_seqs
        """Per row, the position behind its last step."""
        self.prompt_logprobs_rows: set[int] = set()
        """Rows whose request wants the log-probabilities of its prompt."""
        lengths = [g.spec.max_len if isinstance(g.spec, CrossAttention) else max_model_len for g in layout.groups]
        self._tables = [
            np.zeros((max_num_seqs, -(-length // group.block_size) + 1), dtype=np.int32)
            for length, group in zip(lengths, layout.groups, strict=True)
        ]
        self._encoder_lens = np.zeros(max_num_seqs, dtype=np.int64)
        self._table_lens = [[0] * max_num_seqs for _ in layout.groups]

    def apply(self, plan: StepPlan) -> None:
        """Take over the plan's differences: rows that left, rows that came, blocks that were added."""
        for row in plan.ended:
            self.requests[row] = None
            self.prompt_logprobs_rows.discard(row)
        for new in plan.new:
            self._enter(new)
        for row, group, blocks in plan.blocks:
            self._append(row, group, blocks)

    def _enter(self, new: NewRow) -> None:
        row = new.row
        self.requests[row] = new
        self.prompt_lens[row] = new.prompt_len
        self.token_ids[row, : len(new.token_ids)] = torch.tensor(new.token_ids, dtype=torch.int64)
        self.seeds[row] = new.seed
        self._encoder_lens[row] = 0 if new.encoder is None else new.encoder.length
        if new.sampling.prompt_logprobs is not None:
            self.prompt_logprobs_rows.add(row)
        for group, blocks in enumerate(new.blocks):
            self._table_lens[group][row] = 0
            self._append(row, group, blocks)

    def _append(self, row: int, group: int, blocks: list[int]) -> None:
        have = self._table_lens[group][row]
        self._tables[group][row, have : have + len(blocks)] = blocks
        self._table_lens[group][row] = have + len(blocks)

    def inputs(self, plan: StepPlan) -> StepInputs:
        """Return, once per plan, the step's tokens and, per KV group, where their keys and values are."""
        steady, row_ends = len(plan.steady), self._ends
        all_rows = [*plan.steady, *plan.rows]
        all_starts = [*(row_ends[row] for row in plan.steady), *plan.starts]
        all_counts = [*([1] * steady), *plan.counts]
        for row, start, count in zip(all_rows, all_starts, all_counts, strict=True):
            row_ends[row] = start + count
        rows, starts = np.asarray(all_rows, dtype=np.int64), np.asarray(all_starts, dtype=np.int64)
        counts = np.asarray(all_counts, dtype=np.int64)
        if len(rows) == int(counts.sum()):  # decoding only: one token per row
            token_rows, positions = rows, starts
            query_starts = list(range(len(rows) + 1))
        else:
            ends = np.cumsum(counts)
            token_rows = np.repeat(rows, counts)
            positions = np.arange(ends[-1]) - np.repeat(ends - counts - starts, counts)
            query_starts = [0, *accumulate(all_counts)]
        on_device = self._to_device(positions)
        encoded = [new for new in plan.new if new.encoder is not None]
        return StepInputs(
            rows=all_rows,
            starts=all_starts,
            counts=all_counts,
            samples=[*range(steady), *(steady + index for index in plan.samples)],
            input_ids=self.token_ids[self._to_device(token_rows), on_device],
            positions=on_device,
            query_starts=query_starts,
            groups=[
                self._cross_inputs(group, rows, [new.row for new in encoded], query_starts)
                if isinstance(self._layout.groups[group].spec, CrossAttention)
                else self._group_inputs(group, rows, starts, counts, token_rows, positions, query_starts)
                for group in range(len(self._tables))
            ],
            encoder_inputs=[new.encoder for new in encoded if new.encoder is not None],
        )

    def _cross_inputs(
        self, group: int, rows: Ints, encoded: list[int], starts: list[int]
    ) -> AttentionInputs | StatePlan:
        """Return where what encoders made is, and where to write that of the rows that are `encoded` in this step."""
        token_rows = np.repeat(np.asarray(encoded, dtype=np.int64), self._encoder_lens[encoded])
        positions = np.concatenate([np.arange(0), *map(np.arange, self._encoder_lens[encoded])])
        lens, none = self._encoder_lens[rows], np.zeros_like(rows)
        return self._group_inputs(group, rows, lens, none, token_rows, positions, starts)

    def _group_inputs(
        self, group: int, rows: Ints, starts: Ints, counts: Ints, owners: Ints, positions: Ints, query_starts: list[int]
    ) -> AttentionInputs | StatePlan:
        layout, table = self._layout.groups[group], self._tables[group]
        size, spec = layout.block_size, layout.spec
        if isinstance(spec, RecurrentState):
            return plan_states(starts, counts, table[rows], size, self._to_device)
        kv_lens = (starts + counts).tolist()
        slots = table[owners, positions // size].astype(np.int64) * size + positions % size
        most = -(-max(kv_lens, default=0) // size)
        return AttentionInputs(
            query_starts=query_starts,
            kv_lens=kv_lens,
            block_table=self._to_device(table[rows, :most]),
            slots=self._to_device(slots),
            block_size=size,
            spec=spec,
        )

    def _to_device(self, array: npt.NDArray[np.int32] | Ints) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)
