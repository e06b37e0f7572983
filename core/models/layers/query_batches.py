"""Queries of all sequences of a step in few batches, for attention by torch's own products.

The number of batches depends on the lengths of chunks and on memory, not on the number of
sequences: those with up to 1, 2, 4, ... queries are computed together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import torch

MAX_SCORES: Final = 1 << 23
"""Maximum scores of a sequence's queries in memory at a time."""
MAX_ELEMENTS: Final = 1 << 24
"""Maximum scores, or elements of rows, of a batch of several sequences in memory at a time."""


class Queries(NamedTuple):
    """Consecutive tokens of one sequence in a step."""

    sequence: int
    """Number of the sequence in the step."""
    start: int
    """First token of the step."""
    end: int
    """Token of the step after the last one."""
    position: int
    """Position of the first one."""

    @property
    def length(self) -> int:
        """Number of tokens that the last one sees."""
        return self.position + self.end - self.start


class SeenRows(NamedTuple):
    """What the queries of a layer see, and what a query needs in memory."""

    window: int | None
    """Number of latest rows; None: all."""
    heads: int
    """Scores of a query and a row."""
    row_size: int
    """Elements of a row."""
    rate: int = 0
    """Tokens of an earlier row; 0: there are none."""
    top_k: int = 0
    """Number of earlier rows that are selected where there are more; 0: all are seen."""
    min_width: int = 0
    """Minimum number of scores of a query and a head."""

    def num_far(self, length: int) -> int:
        """Return the number of earlier rows of a sequence."""
        return length // self.rate if self.rate else 0

    def selects(self, length: int) -> bool:
        """Return whether some of the earlier rows are selected."""
        return 0 < self.top_k < self.num_far(length)

    def num_near(self, each: Queries) -> int:
        """Return the number of latest rows that a piece sees."""
        if self.window is None:
            return each.length
        return each.length - max(0, each.position - self.window + 1)

    def pieces(self, sequences: Sequence[Queries]) -> Iterator[Queries]:
        """Yield the queries of each sequence in pieces of up to `MAX_SCORES` scores."""
        for each in sequences:
            near = each.length if self.window is None else self.window
            width = max(near + self.num_far(each.length), self.min_width)
            size = max(1, MAX_SCORES // (self.heads * width))
            for start in range(each.start, each.end, size):
                yield each._replace(
                    start=start,
                    end=min(each.end, start + size),
                    position=each.position + start - each.start,
                )

    def elements(self, each: Queries, count: int) -> int:
        """Return the elements in memory for a piece that is padded to `count` queries."""
        near = self.num_near(each)
        far = self.num_far(each.length)
        scores = self.heads * count * max(near + far, self.min_width)
        rows = near + (self.top_k * count if self.selects(each.length) else far)
        return max(scores, rows * self.row_size)


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """Queries of several sequences in equal numbers: the last one of each may be repeated."""

    members: list[Queries]
    """One of each sequence."""
    sequences: torch.Tensor
    """[s] number of each sequence in the step."""
    tokens: torch.Tensor
    """[s, n] tokens of the step."""
    positions: torch.Tensor
    """[s, n]."""
    slots: torch.Tensor
    """[s, m] slots of the rows that queries may see; the last one may be repeated."""
    distance: torch.Tensor
    """[s, n, m] position of each query less that of each row; below 0 for repeated rows."""
    is_hidden: torch.Tensor
    """[s, n, m] whether a query does not see a row."""
    complete: torch.Tensor | None = None
    """[s, n] number of earlier rows that a query sees; None: there are none."""
    far_slots: torch.Tensor | None = None
    """[s, k] slots of all earlier rows; None: there are none, or they are selected."""
    is_far_hidden: torch.Tensor | None = None
    """[s, n, k] whether a query does not see an earlier row."""


SlotsOf = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Returns the slots of rows of sequences [s], by their numbers [s, m]."""


def make_batches(
    sequences: Sequence[Queries],
    seen: SeenRows,
    slots_of: SlotsOf,
    far_slots_of: SlotsOf | None,
    device: torch.device,
) -> list[QueryBatch]:
    """Return the queries of a step in batches."""
    groups: dict[tuple[int, bool, bool], list[Queries]] = {}
    for piece in seen.pieces(sequences):
        kind = (seen.num_far(piece.length) > 0, seen.selects(piece.length))
        size = (piece.end - piece.start - 1).bit_length()
        groups.setdefault((size, *kind), []).append(piece)
    return [
        _batch(members, seen, slots_of, far_slots_of, device)
        for _, pieces in sorted(groups.items())
        for members in _within_memory(pieces, seen)
    ]


def _within_memory(pieces: list[Queries], seen: SeenRows) -> Iterator[list[Queries]]:
    """Yield pieces that fit `MAX_ELEMENTS` together, those of similar lengths first."""
    count = max(each.end - each.start for each in pieces)
    members: list[Queries] = []
    for each in sorted(pieces, key=lambda each: each.length):
        if members and (len(members) + 1) * seen.elements(each, count) > MAX_ELEMENTS:
            yield members
            members = []
        members.append(each)
    yield members


def _batch(
    members: list[Queries],
    seen: SeenRows,
    slots_of: SlotsOf,
    far_slots_of: SlotsOf | None,
    device: torch.device,
) -> QueryBatch:
    """Return one batch of pieces, the longest sequence last."""
    sequences, starts, ends, firsts = torch.tensor(members, device=device).unbind(1)
    counts = [each.end - each.start for each in members]
    steps = torch.arange(max(counts), device=device)
    tokens = torch.minimum(starts[:, None] + steps, ends[:, None] - 1)
    positions = (firsts - starts)[:, None] + tokens
    oldest = torch.zeros_like(firsts)
    if seen.window is not None:
        oldest = (firsts - (seen.window - 1)).clamp(min=0)
    width = max(map(seen.num_near, members))
    rows = oldest[:, None] + torch.arange(width, device=device)
    distance = positions[..., None] - rows[:, None]
    is_hidden = distance < 0
    if seen.window is not None:
        is_hidden = is_hidden | (distance >= seen.window)
    slots = slots_of(sequences, torch.minimum(rows, positions[:, -1:]))
    batch = QueryBatch(members, sequences, tokens, positions, slots, distance, is_hidden)
    num_far = seen.num_far(members[-1].length)
    if not num_far:
        return batch
    complete = (positions + 1) // seen.rate
    if seen.selects(members[-1].length):
        return replace(batch, complete=complete)
    assert far_slots_of is not None, "earlier rows have a group of their own"
    far = torch.arange(num_far, device=device)
    return replace(
        batch,
        complete=complete,
        far_slots=far_slots_of(sequences, torch.minimum(far, complete[:, -1:] - 1)),
        is_far_hidden=far >= complete[..., None],
    )
