"""Which recurrent states a step reads and writes, and in which order: worked out on the host, once
per step and group.

A step's tokens of one sequence are cut where blocks end. Such a segment reads the state of the
block that holds the position before it and writes its own block's. Segments of equal length are
computed together, as [n, length, ...]; those that read what others of the same step write come
after them. That may be another sequence: one that begins alike is given the other's blocks in the
step that fills them.

Guesses are segments of one token each, whose states go to spare places. Once it is known how many
hold, the state behind the last of these is copied to its block, and so are those at boundaries
before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace

from core.model_spec.kv import DTYPE_BYTES, LayerKV, RecurrentState

if TYPE_CHECKING:
    from core.contracts import AttentionBackend, AttentionInputs, BuildContext

Ints = npt.NDArray[np.int64]
States = tuple[torch.Tensor, ...]
"""A layer's cache: for each part of its state, [num_blocks, *shape].

Block 0 is the state before the first token.
"""
LayerCache = torch.Tensor | States
"""What a caching layer is given: one tensor for attention, the parts of a state otherwise."""


def state_views(memory: torch.Tensor, spec: RecurrentState, num_blocks: int) -> States:
    """Return a layer's memory, uint8, as its cache."""
    pages = torch.split(memory.view(num_blocks, -1), spec.part_bytes, dim=1)
    return tuple(
        page[:, : math.prod(shape) * DTYPE_BYTES[dtype]]
        .view(getattr(torch, dtype))
        .view(num_blocks, *shape)
        for page, (shape, dtype) in zip(pages, spec.parts, strict=True)
    )


def with_spare(layers: Sequence[LayerKV], states: int, blocks: int) -> list[LayerKV]:
    """Return what layers keep, with so many spare states, or blocks of attention, beside."""
    return [
        LayerKV(
            each.name,
            replace(each.spec, spare=states if isinstance(each.spec, RecurrentState) else blocks),
        )
        for each in layers
    ]


def state_dtype(context: BuildContext) -> str:
    """Return the dtype of what layers keep of all tokens."""
    chosen = (context.state_dtype, context.conv_state_dtype)
    return next((dtype for dtype in chosen if dtype != "auto"), "float32")


def prepare(backend: AttentionBackend, inputs: AttentionInputs | StatePlan) -> Any:
    """Return what layers of one group are given in a step."""
    return inputs if isinstance(inputs, StatePlan) else backend.prepare(inputs)


@dataclass(frozen=True, slots=True)
class Run:
    """Segments of equal length, computed together."""

    count: int
    length: int
    tokens: slice | torch.Tensor
    """Their places in the step, segment by segment."""
    reads: torch.Tensor
    """[count] int64: the block of each segment's first state, 0 for the beginning of a sequence."""
    writes: torch.Tensor
    """[count] int64: the block its last state goes to, often the same."""

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows of x [num_tokens, ...] that are computed here, as [count, length, ...]."""
        return x[self.tokens].view(self.count, self.length, *x.shape[1:])

    def load(self, states: torch.Tensor) -> torch.Tensor:
        """Return the first state of each segment [count, *shape], a copy."""
        return states.index_select(0, self.reads)

    def store(self, states: torch.Tensor, last: torch.Tensor) -> None:
        """Keep the last state of each segment, in the dtype of the cache."""
        states.index_copy_(0, self.writes, last.to(states.dtype))


@dataclass(frozen=True, slots=True)
class Guessed:
    """Sequences with guesses. What does not hold is copied to where it stands."""

    samples: torch.Tensor
    """[n] their places among those that sample."""
    spare: torch.Tensor
    """[n] the place of the state behind each one's first guess."""
    blocks: torch.Tensor
    """[n, most guesses] the block of each guess's position."""
    full: tuple[torch.Tensor, torch.Tensor]
    """[m] of guesses at the end of a block: the sequence, and how many guesses stand before it."""

    def moves(self, accepted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the places of states that hold, and where they go."""
        right = accepted[self.samples] - 1
        rows = torch.cat((torch.arange(len(right), device=right.device), self.full[0]))
        before = torch.cat((right - 1, self.full[1]))
        holds = (before >= 0) & (before < right[rows])
        sources = self.spare[rows] + before.clamp_(min=0)
        return sources, torch.where(holds, self.blocks[rows, before], sources)


@dataclass(frozen=True, slots=True)
class StatePlan:
    """One state group in one step.

    Runs are in an order in which every state is written before it is read.
    """

    runs: tuple[Run, ...]
    guessed: Guessed | None = None
    """Where states behind guesses are."""

    def keep(self, accepted: torch.Tensor, cache: States) -> None:
        """Copy what holds of a layer's states behind guesses; accepted: [rows that sample] tokens."""
        if self.guessed is not None:
            sources, blocks = self.guessed.moves(accepted)
            for states in cache:
                states.index_copy_(0, blocks, states.index_select(0, sources))

    def compute(self, function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        """Return `function(run, *inputs)` for the tokens of every run, in the order of the step.

        Inputs are [num_tokens, ...]; the function gets them as [count, length, ...] and returns
        such a tensor.
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
class EvenPlan(StatePlan):
    """One token of each sequence, none of which reads what another writes: a step that graphs may
    hold, so it can be kept as
    the plans of attention can (`AttentionBackend.graph_support`)."""

    padding: int = 0
    """The place for states of padding."""

    @classmethod
    def of(cls, places: torch.Tensor, padding: int) -> EvenPlan:
        """Return the plan whose sequences read and write these blocks [2 * count]."""
        count = len(places) // 2
        return cls((Run(count, 1, slice(0, count), places[:count], places[count:]),), None, padding)

    def kept(self, max_len: int) -> EvenPlan:
        """Return a plan of as many sequences in memory of its own, which changes no state until it
        has taken a step: who
        records one computes it several times, and a state is that of each token once."""
        del max_len
        run = self.runs[0]
        return self.of(torch.cat((run.reads, run.writes)).fill_(self.padding), self.padding)

    def take(self, other: EvenPlan) -> None:
        """Copy what another step of as many sequences reads and writes."""
        own = self.runs[0]
        theirs = other.runs[0]
        own.reads.copy_(theirs.reads)
        own.writes.copy_(theirs.writes)


@dataclass(frozen=True, slots=True)
class Guesses:
    """What a step guesses of those of its sequences that sample."""

    samples: Sequence[int]
    """Indices of these sequences."""
    counts: Ints
    """Guesses of each, which are its last tokens."""
    spare: int
    """The first place for states behind guesses; there are as many as guesses."""


def plan_states(
    starts: Ints,
    counts: Ints,
    tables: npt.NDArray[np.int32],
    block_size: int,
    to_device: Callable[[Ints], torch.Tensor] = torch.from_numpy,
    guesses: Guesses | None = None,
    padding: int = 0,
) -> StatePlan:
    """Return the plan of a step that computes `counts` tokens of each sequence from `starts` on.

    `tables` [num_seqs, most blocks] are their block tables. A sequence that reads another's block
    stands behind it. `padding` is the block of sequences that are none.
    """
    each = np.arange(len(starts))
    if guesses is None and len(starts) == int(counts.sum()):
        reads = np.where(
            starts > 0, tables[each, np.maximum(starts - 1, 0) // block_size], 0
        ).astype(np.int64)
        writes = tables[each, starts // block_size].astype(np.int64)
        if not np.isin(reads[reads != writes], writes).any():
            return EvenPlan.of(to_device(np.concatenate((reads, writes))), padding)
    guessed = np.zeros_like(counts)
    spare = np.zeros_like(counts)
    if guesses is not None:
        guessed[guesses.samples] = guesses.counts
        spare[guesses.samples] = guesses.spare + np.cumsum(guesses.counts) - guesses.counts
    waves = _waves(starts, counts, tables, block_size, guessed, spare)
    runs = [_run(length, segments) for (_, length), segments in sorted(waves)]
    known = (
        None
        if guesses is None
        else _guessed(starts + counts, tables, block_size, guesses, spare, to_device)
    )
    return StatePlan(tuple(_on_device(runs, to_device)), known)


def _guessed(
    ends: Ints,
    tables: npt.NDArray[np.int32],
    block_size: int,
    guesses: Guesses,
    spare: Ints,
    to_device: Callable[[Ints], torch.Tensor],
) -> Guessed:
    samples = guesses.counts.nonzero()[0]
    own = np.asarray(guesses.samples, dtype=np.int64)[samples]
    counts = guesses.counts[samples]
    ahead = np.arange(int(counts.max(initial=0)))
    positions = (ends[own] - counts)[:, None] + ahead
    blocks = tables[own[:, None], np.minimum(positions // block_size, tables.shape[1] - 1)].astype(
        np.int64
    )
    rows, before = (
        (positions % block_size == block_size - 1) & (ahead < counts[:, None])
    ).nonzero()
    arrays = samples, spare[own], blocks, rows, before
    on_samples, on_spare, on_blocks, *full = map(to_device, arrays)
    return Guessed(on_samples, on_spare, on_blocks, (full[0], full[1]))


Segment = tuple[int, int, int]
"""Its first place in the step, the block it reads, the block it writes."""


def _waves(
    starts: Ints,
    counts: Ints,
    tables: npt.NDArray[np.int32],
    block_size: int,
    guessed: Ints,
    spare: Ints,
) -> Sequence[tuple[tuple[int, int], list[Segment]]]:
    """Return segments by (wave, length): a wave later than what writes the state they read."""
    written: dict[int, int] = {}  # block to the wave that writes it
    found: dict[tuple[int, int], list[Segment]] = {}
    place = 0

    def enter(length: int, read: int, write: int) -> None:
        nonlocal place
        wave = written.get(read, -1) + 1
        written[write] = wave
        found.setdefault((wave, length), []).append((place, read, write))
        place += length

    columns = (starts.tolist(), counts.tolist(), tables, guessed.tolist(), spare.tolist())
    for start, count, table, ahead, first in zip(*columns, strict=True):
        end = start + count - ahead
        while start < end:
            stop = min(end, (start // block_size + 1) * block_size)
            enter(
                stop - start,
                int(table[(start - 1) // block_size]) if start else 0,
                int(table[start // block_size]),
            )
            start = stop
        behind = int(table[(end - 1) // block_size])
        for write in range(first, first + ahead):
            enter(1, behind, write)
            behind = write
    return list(found.items())


def _run(length: int, segments: list[Segment]) -> tuple[int, slice | Ints, Ints, Ints]:
    places, reads, writes = np.array(segments, dtype=np.int64).T
    if (np.diff(places) == length).all():
        return length, slice(int(places[0]), int(places[-1]) + length), reads, writes
    return length, (places[:, None] + np.arange(length)).ravel(), reads, writes


def _on_device(
    runs: list[tuple[int, slice | Ints, Ints, Ints]], to_device: Callable[[Ints], torch.Tensor]
) -> list[Run]:
    """Send all numbers in one piece."""
    arrays = [array for _, *parts in runs for array in parts if not isinstance(array, slice)]
    pieces = iter(torch.split(to_device(np.concatenate(arrays)), [len(array) for array in arrays]))
    made = []
    for length, tokens, reads, _ in runs:
        places = tokens if isinstance(tokens, slice) else next(pieces)
        made.append(Run(len(reads), length, places, next(pieces), next(pieces)))
    return made
