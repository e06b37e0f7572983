"""What one step's sequences read: decoding ones together, padded; the others in pieces of queries.

Knows positions and slots, no keys and no values. Only slots of positions that a token may see are
ever named; padding repeats the newest position, so what other requests left in a cache can not leak
in, be it NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from core.api import AttentionInputs

Ints = npt.NDArray[np.int64]
Many = TypeVar("Many", Ints, torch.Tensor)

GATHERED_BYTES: Final = {"cpu": 4 << 20}
"""Most bytes of keys and values that one bucket copies together. On a CPU they should stay in its
cache, and fresh
memory costs more than the copy."""
GATHERED_BYTES_ELSEWHERE: Final = 256 << 20
LEAST_PADDED: Final = 64
"""Sequences up to this length are padded to one length; longer ones by half their own at most."""
MASK_ELEMENTS: Final = 1 << 22
"""Most entries of a piece's mask: a long prompt after a long prefix is cut into pieces of queries.
"""
FEW: Final = 8
"""Up to so many tokens of a sequence, behind cached ones, are computed as if each were one that
decodes.
"""
LOCAL_QUERIES: Final = 256
"""Queries per piece where a window hides most keys of a longer piece."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How far back a layer sees."""

    window: int | None
    chunk: int | None
    causal: bool = True
    """False: every token sees all there is."""
    distances: bool = False
    """Its layers need to know how far each key is."""

    def first(self, position: int) -> int:
        """Return the first position that the token at `position` sees."""
        if self.window is not None:
            return max(0, position - self.window + 1)
        if self.chunk is not None:
            return position // self.chunk * self.chunk
        return 0

    def firsts(self, positions: Many) -> Many:
        """Likewise, for many positions, on the host or on the device."""
        if self.window is not None:
            return (positions - self.window + 1).clip(min=0)
        if self.chunk is not None:
            return positions // self.chunk * self.chunk
        return positions * 0

    def most(self, lens: Ints) -> Ints:
        """Return the most keys that the last tokens of sequences see that are not longer than this."""
        within = [size for size in (self.window, self.chunk) if size is not None]
        return lens.clip(max=min(within)) if within else lens


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tokens of decoding sequences that see similarly many keys: one query each."""

    tokens: torch.Tensor | None
    """[n] int64, their places in the step; None: they are the whole step, in order."""
    slots: torch.Tensor
    """[n * length] int64."""
    length: int
    mask: torch.Tensor | None
    """[n, 1, 1, length] to add to scores; None: nothing is padded."""
    ahead: torch.Tensor | None
    """[n, 1, length] int64: keys' positions minus the query's, where layers need to know."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring queries of one sequence."""

    start: int
    end: int
    """Places in the step."""
    slots: torch.Tensor | None
    """[num_keys] int64; None: the keys are those of these very tokens."""
    mask: torch.Tensor | None
    """[end - start, num_keys] to add to scores; None: what `causal` says."""
    causal: bool
    """Without a mask: as many keys as queries, and those behind a query are hidden; else nothing
    is.
    """
    ahead: torch.Tensor | None = None
    """[end - start, num_keys] int64, as of a bucket."""


class StepPlan:
    """One group in one step. What layers of equal reach need is made once, for the first of them."""

    def __init__(self, inputs: AttentionInputs) -> None:
        self.slots = inputs.slots
        self.slot_tokens = inputs.slot_tokens
        self._inputs = inputs
        self._dtype: torch.dtype
        self._lens = np.asarray(inputs.kv_lens, dtype=np.int64)
        places = np.asarray(inputs.query_starts, dtype=np.int64)
        self._places = places[:-1]
        self._counts = places[1:] - places[:-1]
        self._unsure = inputs.slack is not None
        self._views: dict[tuple[Reach, int], tuple[list[Bucket], list[Piece]]] = {}

    def view(
        self, reach: Reach, score_elements: int, dtype: torch.dtype
    ) -> tuple[list[Bucket], list[Piece]]:
        """Return what layers of this reach compute; a piece without causal kernel has so many
        scores per head.

        Masks are of `dtype`, the queries'.
        """
        self._dtype = dtype
        view = self._views.get((reach, score_elements))
        if view is None:
            view = self._views[reach, score_elements] = (
                self._buckets(reach),
                self._pieces(reach, score_elements),
            )
        return view

    def _entries(self, reach: Reach) -> tuple[Ints, Ints, Ints, Ints]:
        """Return what decodes: sequences, places in the step, tokens of the sequence behind each,
        keys up to it.

        Tokens of sequences whose length the device knows better stand here one by one, and those of
        short stretches behind cached ones, as guesses are.
        """
        counts = self._counts
        lens = self._lens
        places = self._places
        if len(counts) == self._inputs.query_starts[-1]:
            return places, places, np.zeros_like(places), lens
        alone = counts == 1
        if reach.causal:
            alone |= (counts <= FEW) & (lens > counts)
            if self._unsure:
                alone |= np.asarray(self._inputs.slack) > 0
        sequences = np.flatnonzero(alone)
        each = counts[sequences]
        offsets = np.arange(int(each.sum())) - np.repeat(np.cumsum(each) - each, each)
        sequences = np.repeat(sequences, each)
        behind = np.repeat(each, each) - 1 - offsets
        return sequences, places[sequences] + offsets, behind, lens[sequences] - behind

    def _buckets(self, reach: Reach) -> list[Bucket]:
        most = (
            GATHERED_BYTES.get(self.slots.device.type, GATHERED_BYTES_ELSEWHERE)
            // self._inputs.spec.token_bytes
        )
        found = self._entries(reach)
        count = len(found[3])
        lens = found[3]
        if not count:
            return []
        firsts = reach.firsts(lens - 1)
        entries = np.stack((*found, firsts))
        seen = reach.most(lens) if self._unsure else lens - firsts
        least = int(seen.min())
        largest = int(seen.max())
        if largest <= max(LEAST_PADDED, least * 3 // 2) and count * largest <= most:
            return [self._bucket(reach, entries, least, largest)]
        order = np.argsort(seen, kind="stable")
        ordered = seen[order]
        buckets = []
        start = 0
        while start < count:
            alike = (
                int(
                    np.searchsorted(
                        ordered, max(LEAST_PADDED, ordered[start] * 3 // 2), side="right"
                    )
                )
                - start
            )
            sizes = ordered[start : start + alike] * np.arange(1, alike + 1)
            end = start + max(1, int(np.searchsorted(sizes, most, side="right")))
            members = np.sort(order[start:end])
            buckets.append(
                self._bucket(reach, entries[:, members], int(ordered[start]), int(ordered[end - 1]))
            )
            start = end
        return buckets

    def _bucket(self, reach: Reach, entries: Ints, least: int, longest: int) -> Bucket:
        facts = torch.from_numpy(entries).to(self.slots.device, non_blocking=True)
        sequences, tokens, behind, lens, firsts = facts.unbind()
        if self._unsure:
            assert self._inputs.lengths is not None, (
                "the device knows how long sequences with slack are"
            )
            lens = self._inputs.lengths[sequences] - behind
            firsts = reach.firsts(lens - 1)
        ends = lens[:, None]
        positions = firsts[:, None] + self._range(longest)  # [n, longest]
        mask = None
        if self._unsure or least < longest:
            mask = self._hide(positions >= ends)[:, None, None]
            positions = positions.minimum(ends - 1)
        whole = entries.shape[1] == self._inputs.query_starts[-1]
        ahead = (positions - ends + 1)[:, None] if reach.distances else None
        return Bucket(
            None if whole else tokens,
            self._slots(sequences, positions).flatten(),
            longest,
            mask,
            ahead,
        )

    def _pieces(self, reach: Reach, score_elements: int) -> list[Piece]:
        pieces: list[Piece] = []
        several = np.flatnonzero(self._counts > 1)
        if len(several):
            several = np.setdiff1d(several, self._entries(reach)[0])
        for i in several.tolist():
            kv_len, begin, end = self._inputs.kv_lens[i], *self._inputs.query_starts[i : i + 2]
            # position = place + offset
            at = begin
            offset = kv_len - end
            if not reach.causal:
                slots = self._slots(
                    torch.tensor([i]).to(self.slots.device), self._range(kv_len)[None]
                ).flatten()
                pieces.append(Piece(begin, end, slots, None, causal=False))
                continue
            while at < end:
                until = _piece_end(reach, at + offset, kv_len, score_elements) - offset
                pieces.append(self._piece(reach, i, at, until, offset))
                at = until
        return pieces

    def _piece(self, reach: Reach, sequence: int, start: int, end: int, offset: int) -> Piece:
        first = reach.first(start + offset)
        newest = end + offset - 1
        own = first == start + offset  # nothing before these tokens is seen
        if own and reach.first(newest) == first and not reach.distances:
            return Piece(start, end, None, None, causal=True)
        queries = self._range(end - start)[:, None] + (start + offset)
        keys = self._range(newest + 1 - first) + first
        hidden = keys > queries
        if reach.window is not None:
            hidden |= keys <= queries - reach.window
        if reach.chunk is not None:
            hidden |= keys < queries // reach.chunk * reach.chunk
        slots = (
            None if own else self._slots(torch.full_like(keys, sequence), keys[:, None]).flatten()
        )
        return Piece(
            start, end, slots, self._hide(hidden), True, keys - queries if reach.distances else None
        )

    def _slots(self, sequences: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the slots of positions [n, m] of sequences [n]."""
        size = self._inputs.block_size
        blocks = self._inputs.block_table[sequences[:, None], positions // size]
        return blocks.to(torch.int64) * size + positions % size

    def _hide(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(hidden, dtype=self._dtype).masked_fill_(hidden, float("-inf"))

    def _range(self, count: int) -> torch.Tensor:
        return torch.arange(count, device=self.slots.device)


def _piece_end(reach: Reach, position: int, kv_len: int, score_elements: int) -> int:
    """Return where the piece that begins at `position` ends, so that masks stay small and little is
    hidden.
    """
    if reach.chunk is not None:
        kv_len = min(kv_len, (position // reach.chunk + 1) * reach.chunk)
    first = reach.first(position)
    if reach.window is not None and kv_len - first > reach.window:
        return min(kv_len, position + LOCAL_QUERIES)
    if first == position and not score_elements:
        return kv_len
    return min(kv_len, position + max(1, (score_elements or MASK_ELEMENTS) // (kv_len - first)))
