"""Block tables of all KV groups, on the host and the device, and the slot
mapping of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from core.contracts.attention import AttentionInputs
from core.model_spec.kv import CrossAttention, KVLayout, RecurrentState
from core.models.layers.state import DraftTokens, StatePlan, plan_states
from core.step import NewRow
from core.worker.inputs import Ints, Staging, StepInputs


class GroupSlots(NamedTuple):
    """The slot mapping of one KV group in one step."""

    slots: int
    """Staged index of the slot of each token."""
    max_blocks: int
    """Maximum of blocks per sequence."""
    kv_lens: list[int]
    encoder_lengths: Ints | None
    """Encoder positions per sequence, in a cross-attention group."""


class BlockTables:
    """Block tables by KV group and row."""

    def __init__(self, layout: KVLayout, num_rows: int, max_model_len: int, device: str) -> None:
        self._layout = layout
        self._device = device
        widths = []
        for group in layout.groups:
            spec = group.spec
            length = spec.max_len if isinstance(spec, CrossAttention) else max_model_len
            widths.append(-(-length // group.block_size) + 1)
        shape = (len(widths), num_rows, max(widths, default=0))
        self._tables = np.zeros(shape, dtype=np.int32)
        padding = [[layout.padding_block(group)] for group in range(len(widths))]
        self._tables[:, -1] = padding
        self.on_device = torch.zeros(shape, dtype=torch.int32, device=device)
        self._lens = np.zeros(shape[:2], dtype=np.int64)
        self._num_encoder_positions = np.zeros(num_rows, dtype=np.int64)

    def length(self, group: int, row: int) -> int:
        """Return the number of blocks of a row's table."""
        return int(self._lens[group, row])

    def reset_row(self, new: NewRow) -> None:
        """Empty the tables of a row for a new request."""
        self._num_encoder_positions[new.row] = new.num_encoder_positions
        self._lens[:, new.row] = 0

    def append(
        self, added: Sequence[tuple[int, int, list[int]]], staging: Staging
    ) -> tuple[int, int]:
        """Append (row, group, blocks), each table once; return staged offsets
        and blocks.
        """
        rows, groups, lists = zip(*added, strict=True)
        sizes = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        ids = chain.from_iterable(lists)
        blocks = np.fromiter(ids, dtype=np.int64, count=int(sizes.sum()))
        group_index = np.asarray(groups, dtype=np.int64)
        row_index = np.asarray(rows, dtype=np.int64)
        lens = self._lens[group_index, row_index]
        _, num_rows, width = self._tables.shape
        firsts = (group_index * num_rows + row_index) * width + lens
        starts = firsts - np.cumsum(sizes) + sizes
        offsets = np.repeat(starts, sizes) + np.arange(len(blocks))
        self._tables.reshape(-1)[offsets] = blocks
        self._lens[group_index, row_index] = lens + sizes
        return staging.put(offsets), staging.put(blocks)

    def write(self, offsets: torch.Tensor, blocks: torch.Tensor) -> None:
        """Write appended blocks to the device tables."""
        self.on_device.view(-1)[offsets] = blocks.int()

    def map_slots(self, step: StepInputs, staging: Staging) -> None:
        """Fill `step.groups`: the slot mapping of each attention group, the
        plan of each state.
        """
        step.encoder_rows = [new for new in step.new if new.num_encoder_positions]
        for group, layout in enumerate(self._layout.groups):
            spec = layout.spec
            found: GroupSlots | StatePlan
            if isinstance(spec, RecurrentState):
                found = self._plan_states(group, step)
            elif isinstance(spec, CrossAttention):
                found = self._encoder_slots(group, step, staging)
            else:
                rows = step.token_rows
                positions = step.token_positions
                slots = self._slots(group, rows, positions, staging)
                max_blocks = self._max_blocks(group, step.row_lengths)
                found = GroupSlots(slots, max_blocks, step.kv_lens, None)
            step.groups.append(found)

    def _plan_states(self, group: int, step: StepInputs) -> StatePlan:
        layout = self._layout
        drafts = None
        if step.num_draft_tokens is not None:
            first_spare = layout.first_spare_block(group)
            drafts = DraftTokens(step.samples, step.num_draft_tokens, first_spare)
        return plan_states(
            step.row_starts,
            step.row_counts,
            self._tables[group][step.row_index],
            layout.groups[group].block_size,
            self.to_device,
            drafts,
            layout.padding_block(group),
        )

    def _encoder_slots(self, group: int, step: StepInputs, staging: Staging) -> GroupSlots:
        """Return the slots of the encoder positions of new rows."""
        lengths = self._num_encoder_positions
        owners = [new.row for new in step.encoder_rows]
        rows = np.repeat(np.asarray(owners, dtype=np.int64), lengths[owners])
        positions = np.concatenate([np.arange(0), *map(np.arange, lengths[owners])])
        own = lengths[step.row_index]
        slots = self._slots(group, rows, positions, staging)
        return GroupSlots(slots, self._max_blocks(group, own), own.tolist(), own)

    def _slots(self, group: int, rows: Ints, positions: Ints, staging: Staging) -> int:
        """Stage the slot of each (row, position) and return the
        staged index.
        """
        size = self._layout.groups[group].block_size
        width = self._tables.shape[2]
        index = np.minimum(positions // size, width - 1)
        blocks = self._tables[group][rows, index].astype(np.int64)
        return staging.put(blocks * size + positions % size)

    def _max_blocks(self, group: int, lengths: Ints) -> int:
        size = self._layout.groups[group].block_size
        longest = int(lengths.max(initial=0))
        width: int = self._tables.shape[2]
        return min(-(-longest // size), width)

    def to_device(self, array: Ints) -> torch.Tensor:
        """Copy an array to the device."""
        return torch.from_numpy(array).to(self._device, non_blocking=True)

    def attention_inputs(self, step: StepInputs) -> list[AttentionInputs | StatePlan]:
        """Return each group's attention inputs or state plan."""
        return [
            self._group_inputs(group, step, found) if isinstance(found, GroupSlots) else found
            for group, found in enumerate(step.groups)
        ]

    def _group_inputs(self, group: int, step: StepInputs, found: GroupSlots) -> AttentionInputs:
        layout = self._layout.groups[group]
        assert not isinstance(layout.spec, RecurrentState), "states have plans of their own"
        size = layout.block_size
        table = self.on_device[group]
        rows = step.array("rows")
        slots = step.on_device[found.slots]
        unverified = None
        if found.encoder_lengths is not None:
            lengths = self.to_device(found.encoder_lengths)
        else:
            lengths = step.array("lengths")
            if step.num_unverified is not None:
                unverified = step.num_unverified.tolist()
                token_rows = rows[step.array("sequences")]
                blocks = table[token_rows, step.positions // size]
                slots.copy_(blocks * size + step.positions % size)
        return AttentionInputs(
            query_starts=step.query_starts,
            kv_lens=found.kv_lens,
            block_table=table[:, : found.max_blocks].index_select(0, rows),
            slots=slots,
            block_size=size,
            spec=layout.spec,
            starts=step.array("starts"),
            counts=step.array("counts"),
            lengths=lengths,
            slack=unverified,
        )
