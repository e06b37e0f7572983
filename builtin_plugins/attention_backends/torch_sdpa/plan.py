"""Plan of one step: decode tokens in padded buckets, prefill sequences in pieces of queries.

Knows positions and slots, no keys or values. Only slots of visible positions are read. Padding
repeats the newest position, so stale cache contents of other requests (even NaN) never leak in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from core.api.models import AttentionInputs

Ints = npt.NDArray[np.int64]
Positions = TypeVar("Positions", Ints, torch.Tensor)

GATHERED_BYTES: Final = {"cpu": 4 << 20}
"""Maximum bytes of keys and values gathered per bucket, by device; on a CPU they stay in its
cache.
"""
GATHERED_BYTES_ELSEWHERE: Final = 256 << 20
MIN_PADDED_LENGTH: Final = 64
"""Length up to which sequences share one bucket; longer ones are padded by up to half."""
MASK_ELEMENTS: Final = 1 << 22
"""Maximum elements of a piece's mask; a long prompt after a long prefix is split into pieces."""
MAX_SHORT_EXTENSION: Final = 8
"""Maximum tokens of a sequence with a cached prefix that are computed as decode tokens."""
LOCAL_QUERIES: Final = 256
"""Queries per piece of sliding-window layers."""


@dataclass(frozen=True, slots=True)
class AttentionSpan:
    """Visible positions of a layer: sliding window, chunk, causality."""

    window: int | None
    chunk: int | None
    causal: bool = True
    """Causal mask; False: every token attends to all keys."""
    distances: bool = False
    """Whether layers need the key offsets (distance bias)."""

    def first(self, position: int) -> int:
        """Return the first position visible from `position`."""
        if self.window is not None:
            return max(0, position - self.window + 1)
        if self.chunk is not None:
            return position // self.chunk * self.chunk
        return 0

    def firsts(self, positions: Positions) -> Positions:
        """Return the first visible position of many positions, on the host or the device."""
        if self.window is not None:
            return (positions - self.window + 1).clip(min=0)
        if self.chunk is not None:
            return positions // self.chunk * self.chunk
        return positions * 0

    def max_visible(self, lens: Ints) -> Ints:
        """Return the maximum number of keys visible from the last token of sequences of these
        lengths.
        """
        within = [size for size in (self.window, self.chunk) if size is not None]
        return lens.clip(max=min(within)) if within else lens


@dataclass(frozen=True, slots=True)
class Bucket:
    """Decode tokens with similar numbers of visible keys, one query each."""

    tokens: torch.Tensor | None
    """[n] int64 token indices in the step; None: the whole step, in order."""
    slots: torch.Tensor
    """[n * length] int64: slots of the keys."""
    length: int
    mask: torch.Tensor | None
    """[n, 1, 1, length] additive mask; None: no padding."""
    offsets: torch.Tensor | None
    """[n, 1, length] int64: key position minus query position, if layers need it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive queries of one sequence."""

    start: int
    end: int
    """Token range in the step: `start` to `end`."""
    slots: torch.Tensor | None
    """[num_keys] int64: slots of the keys; None: the keys of these tokens."""
    mask: torch.Tensor | None
    """[end - start, num_keys] additive mask; None: as `causal`."""
    causal: bool
    """Whether later keys are hidden, without a mask; keys and queries are equally many then."""
    offsets: torch.Tensor | None = None
    """[end - start, num_keys] int64: key position minus query position, if layers need it."""


class StepPlan:
    """One KV group in one step; layers with equal spans share their buckets and pieces."""

    def __init__(self, inputs: AttentionInputs) -> None:
        self.slots = inputs.slots
        self.slot_tokens = inputs.slot_tokens
        self.inputs = inputs
        self._dtype: torch.dtype
        self._lens = np.asarray(inputs.kv_lens, dtype=np.int64)
        starts = np.asarray(inputs.query_starts, dtype=np.int64)
        self._starts = starts[:-1]
        self._counts = starts[1:] - starts[:-1]
        self._has_unverified = inputs.slack is not None
        self._views: dict[tuple[AttentionSpan, int], tuple[list[Bucket], list[Piece]]] = {}

    def view(
        self, span: AttentionSpan, score_elements: int, dtype: torch.dtype
    ) -> tuple[list[Bucket], list[Piece]]:
        """Return buckets and pieces of layers with this span.

        `score_elements`: maximum scores per head of a piece without a fused kernel. Masks have the
        queries' `dtype`.
        """
        self._dtype = dtype
        view = self._views.get((span, score_elements))
        if view is None:
            view = self._views[span, score_elements] = (
                self._buckets(span),
                self._pieces(span, score_elements),
            )
        return view

    def _entries(self, span: AttentionSpan) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the decode tokens: sequences, token indices, later tokens of the sequence, keys.

        Includes every token of sequences with an unverified length, and of short extensions of a
        cached prefix, such as draft tokens.
        """
        counts = self._counts
        lens = self._lens
        starts = self._starts
        if len(counts) == self.inputs.query_starts[-1]:
            return starts, starts, np.zeros_like(starts), lens
        alone = counts == 1
        if span.causal:
            alone |= (counts <= MAX_SHORT_EXTENSION) & (lens > counts)
            if self._has_unverified:
                alone |= np.asarray(self.inputs.slack) > 0
        sequences = np.flatnonzero(alone)
        each = counts[sequences]
        offsets = np.arange(int(each.sum())) - np.repeat(np.cumsum(each) - each, each)
        sequences = np.repeat(sequences, each)
        num_later = np.repeat(each, each) - 1 - offsets
        return sequences, starts[sequences] + offsets, num_later, lens[sequences] - num_later

    def _buckets(self, span: AttentionSpan) -> list[Bucket]:
        max_keys = (
            GATHERED_BYTES.get(self.slots.device.type, GATHERED_BYTES_ELSEWHERE)
            // self.inputs.spec.token_bytes
        )
        found = self._entries(span)
        count = len(found[3])
        lens = found[3]
        if not count:
            return []
        firsts = span.firsts(lens - 1)
        entries = np.stack((*found, firsts))
        seen = span.max_visible(lens) if self._has_unverified else lens - firsts
        least = int(seen.min())
        largest = int(seen.max())
        if largest <= max(MIN_PADDED_LENGTH, least * 3 // 2) and count * largest <= max_keys:
            return [self._bucket(span, entries, least, largest)]
        order = np.argsort(seen, kind="stable")
        ordered = seen[order]
        buckets = []
        start = 0
        while start < count:
            num_similar = (
                int(
                    np.searchsorted(
                        ordered, max(MIN_PADDED_LENGTH, ordered[start] * 3 // 2), side="right"
                    )
                )
                - start
            )
            sizes = ordered[start : start + num_similar] * np.arange(1, num_similar + 1)
            end = start + max(1, int(np.searchsorted(sizes, max_keys, side="right")))
            members = np.sort(order[start:end])
            buckets.append(
                self._bucket(span, entries[:, members], int(ordered[start]), int(ordered[end - 1]))
            )
            start = end
        return buckets

    def _bucket(self, span: AttentionSpan, entries: Ints, least: int, longest: int) -> Bucket:
        facts = torch.from_numpy(entries).to(self.slots.device, non_blocking=True)
        sequences, tokens, num_later, lens, firsts = facts.unbind()
        if self._has_unverified:
            assert self.inputs.lengths is not None, "unverified lengths are on the device"
            lens = self.inputs.lengths[sequences] - num_later
            firsts = span.firsts(lens - 1)
        ends = lens[:, None]
        positions = firsts[:, None] + self._range(longest)  # [n, longest]
        mask = None
        if self._has_unverified or least < longest:
            mask = self._hide(positions >= ends)[:, None, None]
            positions = positions.minimum(ends - 1)
        whole = entries.shape[1] == self.inputs.query_starts[-1]
        offsets = (positions - ends + 1)[:, None] if span.distances else None
        return Bucket(
            None if whole else tokens,
            self._slots(sequences, positions).flatten(),
            longest,
            mask,
            offsets,
        )

    def _pieces(self, span: AttentionSpan, score_elements: int) -> list[Piece]:
        pieces: list[Piece] = []
        several = np.flatnonzero(self._counts > 1)
        if len(several):
            several = np.setdiff1d(several, self._entries(span)[0])
        for i in several.tolist():
            kv_len = self.inputs.kv_lens[i]
            begin, end = self.inputs.query_starts[i : i + 2]
            # position = token index + offset
            at = begin
            offset = kv_len - end
            if not span.causal:
                slots = self._slots(
                    torch.tensor([i]).to(self.slots.device), self._range(kv_len)[None]
                ).flatten()
                pieces.append(Piece(begin, end, slots, None, causal=False))
                continue
            while at < end:
                until = _piece_end(span, at + offset, kv_len, score_elements) - offset
                pieces.append(self._piece(span, i, at, until, offset))
                at = until
        return pieces

    def _piece(
        self, span: AttentionSpan, sequence: int, start: int, end: int, offset: int
    ) -> Piece:
        first = span.first(start + offset)
        newest = end + offset - 1
        own = first == start + offset  # no earlier token is visible
        if own and span.first(newest) == first and not span.distances:
            return Piece(start, end, None, None, causal=True)
        queries = self._range(end - start)[:, None] + (start + offset)
        keys = self._range(newest + 1 - first) + first
        hidden = keys > queries
        if span.window is not None:
            hidden |= keys <= queries - span.window
        if span.chunk is not None:
            hidden |= keys < queries // span.chunk * span.chunk
        slots = (
            None if own else self._slots(torch.full_like(keys, sequence), keys[:, None]).flatten()
        )
        return Piece(
            start, end, slots, self._hide(hidden), True, keys - queries if span.distances else None
        )

    def _slots(self, sequences: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the slots of positions [n, m] of sequences [n]."""
        size = self.inputs.block_size
        blocks = self.inputs.block_table[sequences[:, None], positions // size]
        return blocks.to(torch.int64) * size + positions % size

    def _hide(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(hidden, dtype=self._dtype).masked_fill_(hidden, float("-inf"))

    def _range(self, count: int) -> torch.Tensor:
        return torch.arange(count, device=self.slots.device)


def _piece_end(span: AttentionSpan, position: int, kv_len: int, score_elements: int) -> int:
    """Return the end of the piece that begins at `position`; keeps masks small and dense."""
    if span.chunk is not None:
        kv_len = min(kv_len, (position // span.chunk + 1) * span.chunk)
    first = span.first(position)
    if span.window is not None and kv_len - first > span.window:
        return min(kv_len, position + LOCAL_QUERIES)
    if first == position and not score_elements:
        return kv_len
    return min(kv_len, position + max(1, (score_elements or MASK_ELEMENTS) // (kv_len - first)))
