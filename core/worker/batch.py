"""The persistent batch: what the worker remembers of every row between steps, updated by
difference.

Buffers have their largest size from the start and are filled in place. Rows belong to the
scheduler: a row keeps its request until a plan ends it, so nothing moves. The host part of a step
(`take`) runs ahead of the device's work (`enter`, `gather`, `write`): it touches rows only that no
step in flight computes, and numbers, never tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch

from core.contracts import AttentionInputs
from core.model_spec.kv import CrossAttention, KVLayout, RecurrentState
from core.models.layers.state import Guesses, StatePlan, plan_states
from core.step import NewRow, StepPlan
from core.worker.inputs import Ahead, Steady, StepInputs
from core.worker.rows import Columns
from core.worker.staging import Ints, Staging


class Batch:
    """Rows of the worker: tokens, block tables, and the requests they belong to."""

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
        """`sizes`: numbers of tokens that steps are padded to."""
        num_rows = max_num_seqs + 1  # the last one is padding's
        self._device = device
        self._layout = layout
        self._sizes = tuple(sizes)
        self._length = max_model_len
        self._has_states = any(isinstance(group.spec, RecurrentState) for group in layout.groups)
        self.token_ids = torch.zeros((num_rows, max_model_len), dtype=torch.int64, device=device)
        """Every row's tokens by position, sampled ones included; stale beyond what is known."""
        self.flat_token_ids = self.token_ids.view(-1)
        self.ends = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.columns = Columns(num_rows, device)
        self.requests: list[NewRow | None] = [None] * num_rows
        self.prompt_logprobs_rows: set[int] = set()
        """Rows whose request wants the log-probabilities of its prompt."""
        self.keeps_ends = False
        """Somebody reads `ends` in every step."""
        self._version = 0
        """Changes whenever a request enters."""
        self._ends = np.zeros(num_rows, dtype=np.int64)
        """Per row, the position behind its last step, at most; `_slack`: by how much it may be
        less.
        """
        self._slack = np.zeros(num_rows, dtype=np.int64)
        self._guessing = 0
        """Steps with guesses whose results are not settled."""
        self._epochs = np.zeros(num_rows, dtype=np.int64)
        """Counts how often a row's position was stated anew, which makes older results none of its
        business.
        """
        lengths = [
            g.spec.max_len if isinstance(g.spec, CrossAttention) else max_model_len
            for g in layout.groups
        ]
        widths = [-(-n // g.block_size) + 1 for n, g in zip(lengths, layout.groups, strict=True)]
        shape = (len(widths), num_rows, max(widths, default=0))
        self._tables = np.zeros(shape, dtype=np.int32)
        self._tables[:, -1] = [[layout.padding_block(group)] for group in range(len(widths))]
        self.tables = torch.zeros(shape, dtype=torch.int32, device=device)
        """Block tables by group and row."""
        self._table_lens = np.zeros(shape[:2], dtype=np.int64)
        self._beside = np.zeros(num_rows, dtype=np.int64)
        self._staging, self._news = (Staging(device, depth, size * num_rows) for size in (16, 4))
        self._steady = Steady([], max_model_len)

    # --- the host part

    def take(self, plan: StepPlan, num_tokens: int = 0) -> StepInputs:
        """Take over the plan's differences (rows that left, that came, blocks that were added) and
        work out its step.

        It is filled up to `num_tokens` with padding.
        """
        self._staging.begin()
        self._news.begin()
        for row in plan.ended:
            self.requests[row] = None
            self.prompt_logprobs_rows.discard(row)
        self._version += bool(plan.new)
        step = StepInputs(plan.new, self._version)
        blocks = plan.blocks
        if plan.new:
            step.entered = (
                *self.columns.enter(plan.new, self._news),
                [self._enter(new) for new in plan.new],
            )
            blocks = [
                *(
                    (new.row, group, own)
                    for new in plan.new
                    for group, own in enumerate(new.blocks)
                ),
                *blocks,
            ]
        if blocks:
            step.appended = self._append(blocks)
        if plan.rows or plan.steady or num_tokens:
            self._place(plan, step, num_tokens)
            self._find_blocks(step)
            if not step.point_rows:
                step.place_samples(self._length, self._staging)
        step.numbers = self._staging.end()
        step.news = self._news.end()
        return step

    def _enter(self, new: NewRow) -> int:
        row = new.row
        self.requests[row] = new
        self._beside[row], self._table_lens[:, row] = new.beside, 0
        if new.sampling.prompt_logprobs is not None:
            self.prompt_logprobs_rows.add(row)
        return self._news.put(new.token_ids)

    def _append(self, added: list[tuple[int, int, list[int]]]) -> tuple[int, int]:
        """Append blocks to tables, each named once; return where places and blocks stand."""
        rows, groups, lists = zip(*added, strict=True)
        sizes = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        blocks = np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=int(sizes.sum()))
        of_groups = np.asarray(groups, dtype=np.int64)
        of_rows = np.asarray(rows, dtype=np.int64)
        lens = self._table_lens[of_groups, of_rows]
        _, num_rows, width = self._tables.shape
        firsts = (of_groups * num_rows + of_rows) * width + lens
        places = np.repeat(firsts - np.cumsum(sizes) + sizes, sizes) + np.arange(len(blocks))
        self._tables.reshape(-1)[places] = blocks
        self._table_lens[of_groups, of_rows] = lens + sizes
        return self._news.put(places), self._news.put(blocks)

    def _place(self, plan: StepPlan, step: StepInputs, num_tokens: int) -> None:
        """Work out where every token of the step stands."""
        steady = len(plan.steady)
        same = self._steady
        if same.rows is not plan.steady and same.rows != plan.steady:
            same = self._steady = Steady(plan.steady, self._length)
        rows = same.index
        counts = same.counts
        starts = self._ends[same.index]
        if not (plan.rows or plan.guesses or self._guessing or self._sizes or num_tokens):
            self._ends[rows] = starts + 1
            step.go_on(same, starts, self._staging)
            return
        step.rows = plan.steady
        step.samples = list(same.samples)
        counts = counts.copy()
        if plan.rows:
            step.rows = [*plan.steady, *plan.rows]
            stated = np.asarray(plan.rows, dtype=np.int64)
            rows = np.concatenate((rows, stated))
            starts = np.concatenate((starts, np.asarray(plan.starts, dtype=np.int64)))
            counts = np.concatenate((counts, np.asarray(plan.counts, dtype=np.int64)))
            step.samples += [steady + index for index in plan.samples]
            self._slack[stated] = 0
            self._epochs[stated] += 1
        if plan.guesses:
            step.guesses = np.asarray(plan.guesses, dtype=np.int64)
            counts[:steady] += step.guesses[:steady]
        self._ends[rows] = starts + counts
        if self._guessing and self._slack[rows].any():
            step.slack = self._slack[rows]
        if step.guesses is not None:
            sampled = rows[step.samples]
            step.ahead = Ahead(sampled, step.guesses, self._epochs[sampled])
            self._slack[sampled] += step.guesses
            self._guessing += 1
        if self._sizes or num_tokens:
            total = int(counts.sum())
            least = max(total, num_tokens)
            # Beside prompts, states of padding would be a run of their own.
            sizes = () if self._has_states and total > len(rows) else self._sizes
            step.padding = next((size for size in sizes if size >= least), least) - total
        if step.padding:
            more = (
                np.full(step.padding, len(self.requests) - 1),
                np.zeros(step.padding),
                np.ones(step.padding),
            )
            both = zip((rows, starts, counts), more, strict=True)
            rows, starts, counts = (
                np.concatenate((own, other.astype(np.int64))) for own, other in both
            )
            if step.slack is not None:
                step.slack = np.concatenate((step.slack, np.zeros(step.padding, dtype=np.int64)))
        step.place(rows, starts, counts, self._length, self._staging)

    def _find_blocks(self, step: StepInputs) -> None:
        """Work out, per KV group, where keys and values are, or which states are read and written."""
        step.beside = [new for new in step.new if new.beside]
        for group, layout in enumerate(self._layout.groups):
            if isinstance(layout.spec, RecurrentState):
                table = self._tables[group][step.row_index]
                guesses = None
                if step.guesses is not None:
                    guesses = Guesses(step.samples, step.guesses, self._layout.first_spare(group))
                sequences = (step.row_starts, step.row_counts, table)
                padding = self._layout.padding_block(group)
                step.groups.append(
                    plan_states(*sequences, layout.block_size, self._to_device, guesses, padding)
                )
            elif isinstance(layout.spec, CrossAttention):
                owners = [new.row for new in step.beside]
                rows = np.repeat(np.asarray(owners, dtype=np.int64), self._beside[owners])
                positions = np.concatenate([np.arange(0), *map(np.arange, self._beside[owners])])
                lengths = self._beside[step.row_index]
                step.groups.append(
                    (*self._slots(group, rows, positions, lengths), lengths.tolist(), lengths)
                )
            else:
                slots = self._slots(group, step.token_rows, step.token_positions, step.row_lengths)
                step.groups.append((*slots, step.kv_lens, None))

    def _slots(self, group: int, rows: Ints, positions: Ints, lengths: Ints) -> tuple[int, int]:
        """Return where the slots of tokens stand, and how many blocks a sequence has at most."""
        size = self._layout.groups[group].block_size
        width = self._tables.shape[2]
        blocks = self._tables[group][rows, np.minimum(positions // size, width - 1)].astype(
            np.int64
        )
        return self._staging.put(blocks * size + positions % size), min(
            -(-int(lengths.max(initial=0)) // size), width
        )

    def _to_device(self, array: Ints) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)

    @property
    def is_guessing(self) -> bool:
        """Say whether results of guesses are still to be settled."""
        return self._guessing > 0

    def settle(self, ahead: Ahead, accepted: Ints | None) -> None:
        """Correct the positions of rows by the tokens that were accepted; None: the step has
        failed, and they end.
        """
        self._guessing -= 1
        if accepted is not None:
            own = self._epochs[ahead.rows] == ahead.epochs
            rows = ahead.rows[own]
            self._ends[rows] -= (ahead.guesses + 1 - accepted)[own]
            self._slack[rows] -= ahead.guesses[own]

    # --- the device's work, in its order

    def enter(self, step: StepInputs) -> None:
        """Bring the step's numbers over, and with them rows and blocks that are new."""
        step.arrive(self._staging.send(step.numbers), self.ends)
        if not step.news[1]:
            return
        news = self._news.send(step.news)
        if step.entered is not None:
            ints, floats, known = step.entered
            self.columns.write(news[ints], news[floats])
            for new, tokens in zip(step.new, known, strict=True):
                self.token_ids[new.row, : len(new.token_ids)] = news[tokens]
        if step.appended is not None:
            places, blocks = step.appended
            self.tables.view(-1)[news[places]] = news[blocks].int()

    def gather(self, step: StepInputs) -> list[AttentionInputs | StatePlan]:
        """Read the step's tokens; return where each group's keys and values are, or its states."""
        step.input_ids = self.flat_token_ids.index_select(0, step.at("tokens"))
        return [
            self._group_inputs(group, step, *found) if isinstance(found, tuple) else found
            for group, found in enumerate(step.groups)
        ]

    def _group_inputs(
        self,
        group: int,
        step: StepInputs,
        place: int,
        most: int,
        kv_lens: list[int],
        beside: Ints | None,
    ) -> AttentionInputs:
        layout = self._layout.groups[group]
        table = self.tables[group]
        rows = step.at("rows")
        assert not isinstance(layout.spec, RecurrentState), "states have plans of their own"
        slots = step.on_device[place]
        size = layout.block_size
        slack = None
        if step.slack is not None and beside is None:
            slack = step.slack.tolist()
            blocks = table[rows[step.at("sequences")], step.positions // size]
            slots.copy_(blocks * size + step.positions % size)
        return AttentionInputs(
            query_starts=step.query_starts,
            kv_lens=kv_lens,
            block_table=table[:, :most].index_select(0, rows),
            slots=slots,
            block_size=size,
            spec=layout.spec,
            starts=step.at("starts"),
            counts=step.at("counts"),
            lengths=step.at("lengths") if beside is None else self._to_device(beside),
            slack=slack,
        )

    def write(
        self, step: StepInputs, tokens: torch.Tensor, accepted: torch.Tensor | None = None
    ) -> None:
        """Note what was sampled, and where each row goes on."""
        self.flat_token_ids.index_copy_(0, step.at("destinations"), tokens)
        if accepted is not None or step.slack is not None or self.keeps_ends:
            lengths = step.at("point_lengths")
            step.ends = lengths if accepted is None else lengths[step.at("firsts")] + accepted - 1
            self.ends.index_copy_(0, step.at("sampled"), step.ends)
