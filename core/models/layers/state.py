"""Plans which recurrent states a step reads and writes; computed on the host, once per step and
group.

A sequence's tokens of a step are split at block boundaries into segments. A segment reads the state
of the block of the preceding position and writes the state of its own block. Segments of equal
length are computed together, as [n, length, ...]. A segment that reads a state written in the same
step is computed after it, even if another sequence with the same prefix writes it.

Each draft token is its own segment, which writes a spare state. After verification, the state of
the last accepted token, and accepted states at block boundaries, are copied to their blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace

from core.model_spec.kv import (
    DTYPE_BYTES,
    IndexKeys,
    LatentKeys,
    LayerKV,
    RecurrentState,
    SlidingRows,
)
from core.models.layers.block_sparse_attention import BlockIndexPlan, BlockSparsePlan
from core.models.layers.row_cache import RowsPlan
from core.models.layers.sparse_attention import IndexPlan, SparsePlan

if TYPE_CHECKING:
    from core.contracts.attention import AttentionBackend, AttentionInputs
    from core.contracts.models import BuildContext
    from core.model_spec.op_table import OpTable

Ints = npt.NDArray[np.int64]
States = tuple[torch.Tensor, ...]
"""A layer's cache: [num_blocks, *shape] per part of the state. Block 0 is the initial state."""
LayerCache = torch.Tensor | States
"""Cache of a layer: one tensor for attention, the parts of the state for recurrent layers."""


def state_views(memory: torch.Tensor, spec: RecurrentState, num_blocks: int) -> States:
    """Return views of a layer's uint8 memory as its cache."""
    pages = torch.split(memory.view(num_blocks, -1), spec.part_bytes, dim=1)
    return tuple(
        page[:, : math.prod(shape) * DTYPE_BYTES[dtype]]
        .view(getattr(torch, dtype))
        .view(num_blocks, *shape)
        for page, (shape, dtype) in zip(pages, spec.parts, strict=True)
    )


def with_spare_blocks(layers: Sequence[LayerKV], states: int, blocks: int) -> list[LayerKV]:
    """Return the layers' cache specs with spare states, or spare blocks of attention."""
    return [
        LayerKV(
            each.name,
            replace(each.spec, spare=states if isinstance(each.spec, RecurrentState) else blocks),
        )
        for each in layers
    ]


def state_dtype(context: BuildContext) -> str:
    """Return the dtype of the recurrent state."""
    chosen = (context.state_dtype, context.conv_state_dtype)
    return next((dtype for dtype in chosen if dtype != "auto"), "float32")


def prepare(backend: AttentionBackend, ops: OpTable, inputs: AttentionInputs | StatePlan) -> Any:
    """Return the plan that the layers of one group get in a step."""
    if isinstance(inputs, StatePlan):
        return inputs
    if isinstance(inputs.spec, SlidingRows):
        return RowsPlan(inputs)
    if isinstance(inputs.spec, IndexKeys):
        if inputs.spec.selects_blocks:
            return BlockIndexPlan(inputs, inputs.spec.top_k)
        if inputs.spec.rate > 1 or not inputs.spec.top_k:
            return RowsPlan(inputs)
        prepare_index = getattr(backend, "prepare_index", partial(IndexPlan, ops.select_tokens))
        return prepare_index(inputs, inputs.spec.top_k)
    if inputs.spec.top_k and not isinstance(inputs.spec, LatentKeys):
        return BlockSparsePlan(backend, inputs, inputs.spec.top_k)
    if inputs.spec.top_k:
        prepare_sparse = getattr(backend, "prepare_sparse", partial(SparsePlan, backend))
        return prepare_sparse(inputs, inputs.spec.top_k)
    return backend.prepare(inputs)


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """Segments of equal length, computed together."""

    count: int
    length: int
    tokens: slice | torch.Tensor
    """Token indices in the step, segment by segment."""
    reads: torch.Tensor
    """[count] int64: block of each segment's initial state; 0 at the start of a sequence."""
    writes: torch.Tensor
    """[count] int64: block of each segment's final state."""

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """Return the segments' rows of x [num_tokens, ...], as [count, length, ...]."""
        return x[self.tokens].view(self.count, self.length, *x.shape[1:])

    def load(self, states: torch.Tensor) -> torch.Tensor:
        """Return a copy of the initial state of each segment, [count, *shape]."""
        return states.index_select(0, self.reads)

    def store(self, states: torch.Tensor, last: torch.Tensor) -> None:
        """Write the final state of each segment, in the dtype of the cache."""
        states.index_copy_(0, self.writes, last.to(states.dtype))


@dataclass(frozen=True, slots=True)
class DraftStates:
    """States of draft tokens. A rejected state is copied to itself, which changes nothing."""

    samples: torch.Tensor
    """[n] index of each sequence among the sampling rows."""
    spare: torch.Tensor
    """[n] spare block of the state after each sequence's first draft token."""
    blocks: torch.Tensor
    """[n, max drafts] block of each draft token's position."""
    full: tuple[torch.Tensor, torch.Tensor]
    """[m] draft tokens that end a block: the sequence, and the number of drafts before."""

    def moves(self, accepted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return source and destination blocks of the accepted states."""
        right = accepted[self.samples] - 1
        rows = torch.cat((torch.arange(len(right), device=right.device), self.full[0]))
        before = torch.cat((right - 1, self.full[1]))
        holds = (before >= 0) & (before < right[rows])
        sources = self.spare[rows] + before.clamp_(min=0)
        return sources, torch.where(holds, self.blocks[rows, before], sources)


@dataclass(frozen=True, slots=True)
class StatePlan:
    """One state group in one step; every state is written before it is read."""

    runs: tuple[SegmentGroup, ...]
    drafts: DraftStates | None = None
    """States of draft tokens; None: the step has none."""

    def keep(self, accepted: torch.Tensor, cache: States) -> None:
        """Copy a layer's accepted draft states to their blocks; `accepted` is per sampling row."""
        if self.drafts is not None:
            sources, blocks = self.drafts.moves(accepted)
            for states in cache:
                states.index_copy_(0, blocks, states.index_select(0, sources))

    def compute(self, function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        """Return `function(run, *inputs)` for every run, in the token order of the step.

        Inputs are [num_tokens, ...]; the function gets and returns [count, length, ...].
        """
        if len(self.runs) == 1:
            return function(self.runs[0], *map(self.runs[0].take, inputs)).flatten(0, 1)
        out: torch.Tensor | None = None
        for run in self.runs:
            found = function(run, *map(run.take, inputs)).flatten(0, 1)
            if out is None:
                out = found.new_empty(len(inputs[0]), *found.shape[1:])
            out[run.tokens] = found
        assert out is not None, "a step has tokens"
        return out


@dataclass(frozen=True, slots=True)
class DecodeStatePlan(StatePlan):
    """Plan of a decode step: one token per sequence, independent of each other.

    CUDA graphs may capture it, so it has static copies like attention plans
    (`AttentionBackend.graph_support`).
    """

    padding: int = 0
    """Block for the states of padding rows."""

    @classmethod
    def from_blocks(cls, blocks: torch.Tensor, padding: int) -> DecodeStatePlan:
        """Return the plan that reads and writes these blocks [2 * count]."""
        count = len(blocks) // 2
        return cls(
            (SegmentGroup(count, 1, slice(0, count), blocks[:count], blocks[count:]),),
            None,
            padding,
        )

    def to_static(self, max_len: int) -> DecodeStatePlan:
        """Return a plan with its own buffers for the same number of sequences.

        It writes the padding block until the first `copy_from`, because a capture runs it several
        times and a state must advance once per token.
        """
        del max_len
        run = self.runs[0]
        return self.from_blocks(
            torch.cat((run.reads, run.writes)).fill_(self.padding), self.padding
        )

    def copy_from(self, other: DecodeStatePlan) -> None:
        """Copy the blocks of a plan with the same number of sequences."""
        own = self.runs[0]
        theirs = other.runs[0]
        own.reads.copy_(theirs.reads)
        own.writes.copy_(theirs.writes)


@dataclass(frozen=True, slots=True)
class DraftTokens:
    """Draft tokens of the step's sampling sequences."""

    samples: Sequence[int]
    """Indices of the sampling sequences."""
    counts: Ints
    """Draft tokens of each sequence; they are its last tokens."""
    spare: int
    """First spare block; there is one per draft token."""


def plan_states(
    starts: Ints,
    counts: Ints,
    tables: npt.NDArray[np.int32],
    block_size: int,
    to_device: Callable[[Ints], torch.Tensor] = torch.from_numpy,
    drafts: DraftTokens | None = None,
    padding: int = 0,
) -> StatePlan:
    """Return the plan of a step that computes `counts` tokens of each sequence, from `starts`.

    `tables` [num_seqs, max blocks] are the block tables. A sequence that reads another's block
    comes after it. `padding` is the block of padding rows.
    """
    each = np.arange(len(starts))
    if drafts is None and len(starts) == int(counts.sum()):
        reads = np.where(
            starts > 0, tables[each, np.maximum(starts - 1, 0) // block_size], 0
        ).astype(np.int64)
        writes = tables[each, starts // block_size].astype(np.int64)
        if not np.isin(reads[reads != writes], writes).any():
            return DecodeStatePlan.from_blocks(to_device(np.concatenate((reads, writes))), padding)
    num_drafts = np.zeros_like(counts)
    spare = np.zeros_like(counts)
    if drafts is not None:
        num_drafts[drafts.samples] = drafts.counts
        spare[drafts.samples] = drafts.spare + np.cumsum(drafts.counts) - drafts.counts
    waves = _waves(starts, counts, tables, block_size, num_drafts, spare)
    runs = [_run(length, segments) for (_, length), segments in sorted(waves)]
    draft_states = (
        None
        if drafts is None
        else _draft_states(starts + counts, tables, block_size, drafts, spare, to_device)
    )
    return StatePlan(tuple(_on_device(runs, to_device)), draft_states)


def _draft_states(
    ends: Ints,
    tables: npt.NDArray[np.int32],
    block_size: int,
    drafts: DraftTokens,
    spare: Ints,
    to_device: Callable[[Ints], torch.Tensor],
) -> DraftStates:
    samples = drafts.counts.nonzero()[0]
    own = np.asarray(drafts.samples, dtype=np.int64)[samples]
    counts = drafts.counts[samples]
    offsets = np.arange(int(counts.max(initial=0)))
    positions = (ends[own] - counts)[:, None] + offsets
    blocks = tables[own[:, None], np.minimum(positions // block_size, tables.shape[1] - 1)].astype(
        np.int64
    )
    rows, before = (
        (positions % block_size == block_size - 1) & (offsets < counts[:, None])
    ).nonzero()
    arrays = samples, spare[own], blocks, rows, before
    on_samples, on_spare, on_blocks, *full = map(to_device, arrays)
    return DraftStates(on_samples, on_spare, on_blocks, (full[0], full[1]))


Segment = tuple[int, int, int]
"""First token index in the step, block read, block written."""


def _waves(
    starts: Ints,
    counts: Ints,
    tables: npt.NDArray[np.int32],
    block_size: int,
    num_drafts: Ints,
    spare: Ints,
) -> Sequence[tuple[tuple[int, int], list[Segment]]]:
    """Return segments by (wave, length); a segment's wave is after that of the state it reads."""
    written: dict[int, int] = {}  # block to the wave that writes it
    found: dict[tuple[int, int], list[Segment]] = {}
    next_token = 0

    def enter(length: int, read: int, write: int) -> None:
        nonlocal next_token
        wave = written.get(read, -1) + 1
        written[write] = wave
        found.setdefault((wave, length), []).append((next_token, read, write))
        next_token += length

    columns = (starts.tolist(), counts.tolist(), tables, num_drafts.tolist(), spare.tolist())
    for start, count, table, drafts, first_spare in zip(*columns, strict=True):
        end = start + count - drafts
        while start < end:
            stop = min(end, (start // block_size + 1) * block_size)
            enter(
                stop - start,
                int(table[(start - 1) // block_size]) if start else 0,
                int(table[start // block_size]),
            )
            start = stop
        previous = int(table[(end - 1) // block_size])
        for write in range(first_spare, first_spare + drafts):
            enter(1, previous, write)
            previous = write
    return list(found.items())


def _run(length: int, segments: list[Segment]) -> tuple[int, slice | Ints, Ints, Ints]:
    tokens, reads, writes = np.array(segments, dtype=np.int64).T
    if (np.diff(tokens) == length).all():
        return length, slice(int(tokens[0]), int(tokens[-1]) + length), reads, writes
    return length, (tokens[:, None] + np.arange(length)).ravel(), reads, writes


def _on_device(
    runs: list[tuple[int, slice | Ints, Ints, Ints]], to_device: Callable[[Ints], torch.Tensor]
) -> list[SegmentGroup]:
    """Upload all arrays in one transfer."""
    arrays = [array for _, *parts in runs for array in parts if not isinstance(array, slice)]
    pieces = iter(torch.split(to_device(np.concatenate(arrays)), [len(array) for array in arrays]))
    made = []
    for length, tokens, reads, _ in runs:
        indices = tokens if isinstance(tokens, slice) else next(pieces)
        made.append(SegmentGroup(len(reads), length, indices, next(pieces), next(pieces)))
    return made
