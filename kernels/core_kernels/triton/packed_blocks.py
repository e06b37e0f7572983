"""Blocks of all caches of a group on their way to other memory and back: many blocks, and all
layers, in one launch.

A block is packed into a row of bytes: its part of the first cache, then that of the second, and so
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor

WORD_BYTES: Final = 8
AT_ONCE: Final = 1024
"""Words of a part that a program moves."""
FACTS: Final = tl.constexpr(4)
"""Numbers about a cache: address, words from block to block, words of a block, words before it in a
row.
"""


class PackedBlocks:
    """Bound to caches uint8 [blocks, bytes], whose bytes follow each other.

    They may move, and are found where they lie.
    """

    def __init__(self, caches: Sequence[Tensor]) -> None:
        self._caches: Final = tuple(caches)
        self.sizes: Final = [cache.shape[1] for cache in caches]
        """Bytes of each part."""
        self._places: list[int] = []
        self._facts = torch.empty(0)
        self._word = tl.int64

    def gather(self, blocks: Tensor) -> Tensor:
        """Return rows uint8 [n, bytes] of blocks int64 [n]."""
        rows = torch.empty((len(blocks), sum(self.sizes)), dtype=torch.uint8, device=blocks.device)
        self._move(blocks, rows, back=False)
        return rows

    def scatter(self, blocks: Tensor, rows: Tensor) -> None:
        """Write rows [n, bytes], contiguous, to blocks int64 [n], of which none is there twice."""
        self._move(blocks, rows, back=True)

    def _move(self, blocks: Tensor, rows: Tensor, *, back: bool) -> None:
        if not rows.numel():
            return
        self._find(blocks.device)
        size = WORD_BYTES if self._word == tl.int64 else 1
        grid = len(blocks), len(self._caches), triton.cdiv(max(self.sizes), size * AT_ONCE)
        words = rows.view(torch.int64) if size == WORD_BYTES else rows
        _move[grid](
            self._facts,
            blocks,
            words,
            words.stride(0),
            BACK=back,
            WORD=self._word,
            AT_ONCE=AT_ONCE,
            num_warps=4,
        )

    def _find(self, device: torch.device) -> None:
        """Note where caches lie, if they have moved: those of an engine that slept are elsewhere."""
        places = [cache.data_ptr() for cache in self._caches]
        if places == self._places:
            return
        strides = [cache.stride(0) for cache in self._caches]
        is_in_words = not any(number % WORD_BYTES for number in (*places, *strides, *self.sizes))
        self._word, size = (tl.int64, WORD_BYTES) if is_in_words else (tl.uint8, 1)
        firsts = torch.tensor([0, *self.sizes]).cumsum(0)[:-1] // size
        columns = [
            torch.tensor(places),
            torch.tensor(strides) // size,
            torch.tensor(self.sizes) // size,
            firsts,
        ]
        self._facts = torch.stack(columns, 1).to(device)
        self._places = places


@triton.jit
def _move(
    facts, blocks, rows, row_words, BACK: tl.constexpr, WORD: tl.constexpr, AT_ONCE: tl.constexpr
):
    """A program: some words of a block's part of one cache."""
    own = facts + tl.program_id(1) * FACTS
    words = tl.load(own + 2)
    word = tl.program_id(2) * AT_ONCE + tl.arange(0, AT_ONCE)
    cache = (
        tl.load(own).to(tl.pointer_type(WORD))
        + tl.load(blocks + tl.program_id(0)) * tl.load(own + 1)
        + word
    )
    row = rows + tl.program_id(0).to(tl.int64) * row_words + tl.load(own + 3) + word
    if BACK:
        tl.store(cache, tl.load(row, mask=word < words), mask=word < words)
    else:
        tl.store(row, tl.load(cache, mask=word < words), mask=word < words)
