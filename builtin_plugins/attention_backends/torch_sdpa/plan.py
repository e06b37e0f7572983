"""What one step's sequences read: decoding ones together, padded; the others in pieces of queries.

Knows positions and slots, no keys and no values. Only slots of positions that a token may see are ever named;
padding repeats the newest position, so what other requests left in a cache can not leak in, be it NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from core.api import AttentionInputs

GATHERED_BYTES: Final = {"cpu": 4 << 20}
"""Most bytes of keys and values that one bucket copies together. On a CPU they should stay in its cache, and fresh
memory costs more than the copy."""
GATHERED_BYTES_ELSEWHERE: Final = 256 << 20
LEAST_PADDED: Final = 64
"""Sequences up to this length are padded to one length; longer ones by half their own at most."""
MASK_ELEMENTS: Final = 1 << 22
"""Most entries of a piece's mask: a long prompt after a long prefix is cut into pieces of queries."""
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


@dataclass(frozen=True, slots=True)
class Bucket:
    """Decoding sequences of similar length: one query each."""

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
    """Without a mask: as many keys as queries, and those behind a query are hidden; else nothing is."""
    ahead: torch.Tensor | None = None
    """[end - start, num_keys] int64, as of a bucket."""


class StepPlan:
    """One group in one step. What layers of equal reach need is made once, for the first of them."""

    def __init__(self, inputs: AttentionInputs) -> None:
        self.slots = inputs.slots
        self._inputs = inputs
        self._dtype: torch.dtype = getattr(torch, inputs.spec.dtype)
        self._views: dict[tuple[Reach, int], tuple[list[Bucket], list[Piece]]] = {}

    def view(self, reach: Reach, score_elements: int) -> tuple[list[Bucket], list[Piece]]:
        """Return what layers of this reach compute; a piece without causal kernel has so many scores per head."""
        view = self._views.get((reach, score_elements))
        if view is None:
            view = self._views[reach, score_elements] = (self._buckets(reach), self._pieces(reach, score_elements))
        return view

    def _buckets(self, reach: Reach) -> list[Bucket]:
        starts, lens = self._inputs.query_starts, self._inputs.kv_lens
        most = GATHERED_BYTES.get(self.slots.device.type, GATHERED_BYTES_ELSEWHERE) // self._inputs.spec.token_bytes
        decoding = [i for i in range(len(lens)) if starts[i + 1] - starts[i] == 1]
        seen = {i: lens[i] - reach.first(lens[i] - 1) for i in decoding}
        buckets: list[list[int]] = []
        for i in sorted(decoding, key=seen.__getitem__):
            last = buckets[-1] if buckets else []
            if last and (len(last) + 1) * seen[i] <= most and seen[i] <= max(LEAST_PADDED, seen[last[0]] * 3 // 2):
                last.append(i)
            else:
                buckets.append([i])
        return [self._bucket(reach, sorted(members)) for members in buckets]

    def _bucket(self, reach: Reach, sequences: list[int]) -> Bucket:
        inputs = self._inputs
        lens = [inputs.kv_lens[i] for i in sequences]
        firsts = [reach.first(length - 1) for length in lens]
        seen = [length - first for length, first in zip(lens, firsts, strict=True)]
        longest = max(seen)
        tokens = [inputs.query_starts[i] for i in sequences]
        facts = self._to_device([sequences, firsts, lens, tokens])
        positions = facts[1][:, None] + self._range(longest)  # [n, longest]
        mask = None
        if min(seen) < longest:
            mask = self._hide(positions >= facts[2][:, None])[:, None, None]
        whole = len(sequences) == inputs.query_starts[-1]
        positions = positions.minimum(facts[2][:, None] - 1)
        ahead = (positions - facts[2][:, None] + 1)[:, None] if reach.distances else None
        return Bucket(None if whole else facts[3], self._slots(facts[0], positions).flatten(), longest, mask, ahead)

    def _pieces(self, reach: Reach, score_elements: int) -> list[Piece]:
        pieces = []
        for i, kv_len in enumerate(self._inputs.kv_lens):
            begin, end = self._inputs.query_starts[i], self._inputs.query_starts[i + 1]
            at, offset = begin, kv_len - end  # position = place + offset
            if end - begin > 1 and not reach.causal:
                slots = self._slots(torch.tensor([i]).to(self.slots.device), self._range(kv_len)[None]).flatten()
                pieces.append(Piece(begin, end, slots, None, causal=False))
                continue
            while at < end and end - begin > 1:
                until = _piece_end(reach, at + offset, kv_len, score_elements) - offset
                pieces.append(self._piece(reach, i, at, until, offset))
                at = until
        return pieces

    def _piece(self, reach: Reach, sequence: int, start: int, end: int, offset: int) -> Piece:
        first, newest = reach.first(start + offset), end + offset - 1
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
        slots = None if own else self._slots(torch.full_like(keys, sequence), keys[:, None]).flatten()
        return Piece(start, end, slots, self._hide(hidden), True, keys - queries if reach.distances else None)

    def _slots(self, sequences: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the slots of positions [n, m] of sequences [n]."""
        size = self._inputs.block_size
        blocks = self._inputs.block_table[sequences[:, None], positions // size]
        return blocks.to(torch.int64) * size + positions % size

    def _hide(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(hidden, dtype=self._dtype).masked_fill_(hidden, float("-inf"))

    def _range(self, count: int) -> torch.Tensor:
        return torch.arange(count, device=self.slots.device)

    def _to_device(self, numbers: list[list[int]]) -> torch.Tensor:
        return torch.tensor(numbers).to(self.slots.device, non_blocking=True)


def _piece_end(reach: Reach, position: int, kv_len: int, score_elements: int) -> int:
    """Return where the piece that begins at `position` ends, so that masks stay small and little is hidden."""
    if reach.chunk is not None:
        kv_len = min(kv_len, (position // reach.chunk + 1) * reach.chunk)
    first = reach.first(position)
    if reach.window is not None and kv_len - first > reach.window:
        return min(kv_len, position + LOCAL_QUERIES)
    if first == position and not score_elements:
        return kv_len
    return min(kv_len, position + max(1, (score_elements or MASK_ELEMENTS) // (kv_len - first)))
