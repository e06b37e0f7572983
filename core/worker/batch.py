"""The worker's persistent batch: its state of every row between steps,
updated by difference.

Buffers are allocated at their maximum size and filled in place. A row keeps its request
until a plan ends it, so nothing moves. The host part of a step (`prepare`) may run
ahead of the device work (`upload`, `gather`, `write_tokens`): it changes only rows that
no step in flight computes, and handles counters, never tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from core.contracts.attention import AttentionInputs
from core.model_spec.kv import KVLayout, RecurrentState
from core.models.layers.state import StatePlan
from core.step import NewRow, StepPlan
from core.worker.block_tables import BlockTables
from core.worker.inputs import DecodeBatch, DraftCorrection, Ints, Staging, StepInputs

NO_LOGPROBS = -2
"""Number of log-probabilities of a request without any; -1 is all."""
MIN_TEMPERATURE = 1e-5
"""Lower bound of temperatures; greedy rows, at 0, are never divided by it."""


class SamplingColumns:
    """Sampling parameters by row: on the host at once, on the device in
    stream order.
    """

    def __init__(self, num_rows: int, device: str) -> None:
        self.temperatures = np.zeros(num_rows)
        self.top_k = np.zeros(num_rows, dtype=np.int64)
        self.top_p = np.ones(num_rows)
        self.logprobs = np.full(num_rows, NO_LOGPROBS, dtype=np.int64)
        self.prompt_lens = np.zeros(num_rows, dtype=np.int64)
        self._ints = torch.zeros((2, num_rows), dtype=torch.int64, device=device)
        self._floats = torch.ones(num_rows, dtype=torch.float32, device=device)

    def enter(self, new: Sequence[NewRow], staging: Staging) -> tuple[int, int]:
        """Set the parameters of new rows; return the staged indices for
        `write`.
        """
        rows = [one.row for one in new]
        params = [one.sampling for one in new]
        logprobs = [p.logprobs for p in params]
        prompt_lens = [one.prompt_len for one in new]
        self.temperatures[rows] = [p.temperature for p in params]
        self.top_k[rows] = [p.top_k for p in params]
        self.top_p[rows] = [p.top_p for p in params]
        self.logprobs[rows] = [NO_LOGPROBS if n is None else n for n in logprobs]
        self.prompt_lens[rows] = prompt_lens
        ints = [*rows, *(one.seed for one in new), *prompt_lens]
        floats = self.temperatures[rows].clip(MIN_TEMPERATURE)
        return staging.put(ints), staging.put(floats.view(np.int64))

    def write(self, ints: torch.Tensor, floats: torch.Tensor) -> None:
        """Write the device columns."""
        numbers = ints.view(3, -1)
        self._ints[:, numbers[0]] = numbers[1:]
        self._floats[numbers[0]] = floats.view(torch.float64).float()

    def select(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (seeds, prompt lengths, temperatures) of rows, on the
        device.
        """
        seeds, prompt_lens = self._ints.index_select(1, rows)
        return seeds, prompt_lens, self._floats.index_select(0, rows)


class InputBatch:
    """The rows of the worker: tokens, block tables and requests."""

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        layout: KVLayout,
        device: str,
        *,
        depth: int = 1,
        sizes: Sequence[int] = (),
    ) -> None:
        """Allocate all buffers; `sizes` are token counts that steps are
        padded to.
        """
        num_rows = max_num_seqs + 1  # the last row is for padding
        self._sizes = tuple(sizes)
        self._max_len = max_model_len
        self._has_states = any(isinstance(g.spec, RecurrentState) for g in layout.groups)
        shape = (num_rows, max_model_len)
        self.token_ids = torch.zeros(shape, dtype=torch.int64, device=device)
        """Tokens by row and position, sampled ones included; stale after the
        known ones.
        """
        self.flat_token_ids = self.token_ids.view(-1)
        self.next_positions = torch.zeros(num_rows, dtype=torch.int64, device=device)
        """Position that each row computes next, on the device."""
        self.columns = SamplingColumns(num_rows, device)
        self.requests: list[NewRow | None] = [None] * num_rows
        """Request of each row."""
        self.prompt_logprobs_rows: set[int] = set()
        """Rows that request prompt log-probabilities."""
        self.tracks_next_positions = False
        """Whether a worker half reads `next_positions` in this step."""
        self._version = 0
        """Changes whenever a request enters."""
        self._next_positions = np.zeros(num_rows, dtype=np.int64)
        """Upper bound on the position that each row computes next."""
        self._num_unverified = np.zeros(num_rows, dtype=np.int64)
        """By how much that bound may be too high."""
        self._num_draft_steps = 0
        """Steps with draft tokens and due corrections."""
        self._epochs = np.zeros(num_rows, dtype=np.int64)
        """Number of times a plan stated a row's position, which voids earlier
        corrections.
        """
        self.block_tables = BlockTables(layout, num_rows, max_model_len, device)
        self.tables = self.block_tables.on_device
        """Block tables by group and row, on the device."""
        self._staging = Staging(device, depth, 16 * num_rows)
        self._updates = Staging(device, depth, 4 * num_rows)
        self._decode = DecodeBatch([], max_model_len)

    # --- host part ----------------------------------------------------------

    def prepare(self, plan: StepPlan) -> StepInputs:
        """Apply the plan's differences and return the step's inputs."""
        self._staging.begin()
        self._updates.begin()
        for row in plan.ended:
            self.requests[row] = None
            self.prompt_logprobs_rows.discard(row)
        self._version += bool(plan.new)
        step = StepInputs(plan.new, self._version)
        blocks = plan.blocks
        if plan.new:
            ints, floats = self.columns.enter(plan.new, self._updates)
            step.entered = ints, floats, [self._enter(new) for new in plan.new]
            tables = [(n.row, group, ids) for n in plan.new for group, ids in enumerate(n.blocks)]
            blocks = [*tables, *blocks]
        if blocks:
            step.appended = self.block_tables.append(blocks, self._updates)
        if plan.rows or plan.decode_rows:
            self._place_tokens(plan, step)
            self.block_tables.map_slots(step, self._staging)
            if not step.point_rows:
                step.place_samples(self._max_len, self._staging)
        step.numbers = self._staging.end()
        step.updates = self._updates.end()
        return step

    def _enter(self, new: NewRow) -> int:
        """Set the row of a new request; return the staged index of its
        tokens.
        """
        self.requests[new.row] = new
        self.block_tables.reset_row(new)
        if new.sampling.prompt_logprobs is not None:
            self.prompt_logprobs_rows.add(new.row)
        return self._updates.put(new.token_ids)

    def _place_tokens(self, plan: StepPlan, step: StepInputs) -> None:
        """Fill the position of every token of the step."""
        decode = self._decode
        if decode.rows is not plan.decode_rows and decode.rows != plan.decode_rows:
            decode = DecodeBatch(plan.decode_rows, self._max_len)
            self._decode = decode
        rows = decode.index
        starts = self._next_positions[rows]
        has_drafts = plan.num_draft_tokens or self._num_draft_steps
        if not (plan.rows or has_drafts or self._sizes):
            self._next_positions[rows] = starts + 1
            step.place_decode(decode, starts, self._staging)
            return
        counts = decode.counts.copy()
        step.rows = plan.decode_rows
        step.samples = list(decode.samples)
        num_decodes = len(plan.decode_rows)
        if plan.rows:
            stated = np.asarray(plan.rows, dtype=np.int64)
            rows = np.concatenate((rows, stated))
            starts = np.concatenate((starts, np.asarray(plan.starts, dtype=np.int64)))
            counts = np.concatenate((counts, np.asarray(plan.counts, dtype=np.int64)))
            step.rows = [*plan.decode_rows, *plan.rows]
            step.samples += [num_decodes + index for index in plan.samples]
            self._num_unverified[stated] = 0
            self._epochs[stated] += 1
        if plan.num_draft_tokens:
            drafts = np.asarray(plan.num_draft_tokens, dtype=np.int64)
            step.num_draft_tokens = drafts
            counts[:num_decodes] += drafts[:num_decodes]
        self._next_positions[rows] = starts + counts
        if self._num_draft_steps and self._num_unverified[rows].any():
            step.num_unverified = self._num_unverified[rows]
        if step.num_draft_tokens is not None:
            self._expect_correction(step, step.num_draft_tokens, rows[step.samples])
        if self._sizes:
            step.padding = self._num_padding(int(counts.sum()), len(rows))
        if step.padding:
            rows, starts, counts = self._pad(step, rows, starts, counts)
        step.place(rows, starts, counts, self._max_len, self._staging)

    def _expect_correction(self, step: StepInputs, drafts: Ints, sampled: Ints) -> None:
        """Record that the accepted draft tokens of these rows are not yet
        known.
        """
        step.correction = DraftCorrection(sampled, drafts, self._epochs[sampled])
        self._num_unverified[sampled] += drafts
        self._num_draft_steps += 1

    def _num_padding(self, total: int, num_rows: int) -> int:
        """Return the padding of a step of `total` tokens, up to a size."""
        # With prompts in the step, padding of recurrent states would be a run of its
        # own.
        is_prefill = self._has_states and total > num_rows
        sizes = () if is_prefill else self._sizes
        return next((size for size in sizes if size >= total), total) - total

    def _pad(
        self, step: StepInputs, rows: Ints, starts: Ints, counts: Ints
    ) -> tuple[Ints, Ints, Ints]:
        """Return the arrays with padding: sequences of one token in the
        padding row.
        """
        padding = step.padding
        zeros = np.zeros(padding, dtype=np.int64)
        if step.num_unverified is not None:
            step.num_unverified = np.concatenate((step.num_unverified, zeros))
        padding_row = len(self.requests) - 1
        return (
            np.concatenate((rows, zeros + padding_row)),
            np.concatenate((starts, zeros)),
            np.concatenate((counts, zeros + 1)),
        )

    @property
    def has_draft_steps(self) -> bool:
        """Whether corrections of earlier steps with draft tokens are due."""
        return self._num_draft_steps > 0

    def correct(self, correction: DraftCorrection, accepted: Ints | None) -> None:
        """Correct the positions of rows by their accepted tokens; None after
        a failed step.
        """
        self._num_draft_steps -= 1
        if accepted is None:
            return
        own = self._epochs[correction.rows] == correction.epochs
        rows = correction.rows[own]
        drafts = correction.num_draft_tokens
        self._next_positions[rows] -= (drafts + 1 - accepted)[own]
        self._num_unverified[rows] -= drafts[own]

    # --- device work, in stream order ---------------------------------------

    def upload(self, step: StepInputs) -> None:
        """Copy the step's numbers, new rows and new blocks to the device."""
        step.on_device_ready(self._staging.upload(step.numbers), self.next_positions)
        if not step.updates[1]:
            return
        updates = self._updates.upload(step.updates)
        if step.entered is not None:
            ints, floats, tokens = step.entered
            self.columns.write(updates[ints], updates[floats])
            for new, index in zip(step.new, tokens, strict=True):
                self.token_ids[new.row, : len(new.token_ids)] = updates[index]
        if step.appended is not None:
            offsets, blocks = step.appended
            self.block_tables.write(updates[offsets], updates[blocks])

    def gather(self, step: StepInputs) -> list[AttentionInputs | StatePlan]:
        """Read the step's token ids; return each KV group's inputs."""
        step.input_ids = self.flat_token_ids.index_select(0, step.array("tokens"))
        return self.block_tables.attention_inputs(step)

    def write_tokens(
        self, step: StepInputs, tokens: torch.Tensor, accepted: torch.Tensor | None = None
    ) -> None:
        """Write the sampled tokens, and the position that each row computes
        next.
        """
        self.flat_token_ids.index_copy_(0, step.array("destinations"), tokens)
        has_drafts = accepted is not None or step.num_unverified is not None
        if not (has_drafts or self.tracks_next_positions):
            return
        positions = step.array("point_lengths")
        if accepted is not None:
            positions = positions[step.array("firsts")] + accepted - 1
        step.next_positions = positions
        self.next_positions.index_copy_(0, step.array("sampled"), positions)
