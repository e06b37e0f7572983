"""KV cache kernels: slot writes, block copies, and gather and scatter of blocks of many caches.

A packed block is a row of bytes: its part of the first cache, then of the second, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl

from core_kernels.triton.launching import next_power_of_2, warps

Tensor = torch.Tensor

WORD_BYTES: Final = 8
WORDS_AT_ONCE: Final = 1024
"""Words of a part that one program moves."""
FACTS: Final = tl.constexpr(4)
"""Entries per cache: address, words per block stride, words of a block, word offset in a row."""


class BlockCopier:
    """Gather and scatter for caches uint8 [blocks, bytes] with contiguous bytes.

    The caches may be reallocated; addresses are looked up at each call.
    """

    def __init__(self, caches: Sequence[Tensor]) -> None:
        self._caches: Final = tuple(caches)
        self.sizes: Final = [cache.shape[1] for cache in caches]
        """Bytes of each cache's block."""
        self._addresses: list[int] = []
        self._facts = torch.empty(0)
        self._word = tl.int64

    def gather(self, blocks: Tensor) -> Tensor:
        """Return rows uint8 [n, bytes] of blocks int64 [n]."""
        rows = torch.empty((len(blocks), sum(self.sizes)), dtype=torch.uint8, device=blocks.device)
        self._move(blocks, rows, scatter=False)
        return rows

    def scatter(self, blocks: Tensor, rows: Tensor) -> None:
        """Write contiguous rows [n, bytes] to distinct blocks int64 [n]."""
        self._move(blocks, rows, scatter=True)

    def _move(self, blocks: Tensor, rows: Tensor, *, scatter: bool) -> None:
        if not rows.numel():
            return
        self._update_addresses(blocks.device)
        size = WORD_BYTES if self._word == tl.int64 else 1
        grid = len(blocks), len(self._caches), triton.cdiv(max(self.sizes), size * WORDS_AT_ONCE)
        words = rows.view(torch.int64) if size == WORD_BYTES else rows
        _move[grid](
            self._facts,
            blocks,
            words,
            words.stride(0),
            SCATTER=scatter,
            WORD=self._word,
            WORDS_AT_ONCE=WORDS_AT_ONCE,
            num_warps=4,
        )

    def _update_addresses(self, device: torch.device) -> None:
        """Update the addresses after a reallocation, as when an engine wakes up."""
        addresses = [cache.data_ptr() for cache in self._caches]
        if addresses == self._addresses:
            return
        strides = [cache.stride(0) for cache in self._caches]
        is_in_words = not any(number % WORD_BYTES for number in (*addresses, *strides, *self.sizes))
        self._word, size = (tl.int64, WORD_BYTES) if is_in_words else (tl.uint8, 1)
        firsts = torch.tensor([0, *self.sizes]).cumsum(0)[:-1] // size
        columns = [
            torch.tensor(addresses),
            torch.tensor(strides) // size,
            torch.tensor(self.sizes) // size,
            firsts,
        ]
        self._facts = torch.stack(columns, 1).to(device)
        self._addresses = addresses


@triton.jit
def _move(
    facts,
    blocks,
    rows,
    row_words,
    SCATTER: tl.constexpr,
    WORD: tl.constexpr,
    WORDS_AT_ONCE: tl.constexpr,
):
    """One program: some words of a block's part of one cache."""
    own = facts + tl.program_id(1) * FACTS
    words = tl.load(own + 2)
    word = tl.program_id(2) * WORDS_AT_ONCE + tl.arange(0, WORDS_AT_ONCE)
    cache = (
        tl.load(own).to(tl.pointer_type(WORD))
        + tl.load(blocks + tl.program_id(0)) * tl.load(own + 1)
        + word
    )
    row = rows + tl.program_id(0).to(tl.int64) * row_words + tl.load(own + 3) + word
    if SCATTER:
        tl.store(cache, tl.load(row, mask=word < words), mask=word < words)
    else:
        tl.store(row, tl.load(cache, mask=word < words), mask=word < words)


BYTES_AT_ONCE = 4096
"""Bytes of a block that one program copies."""


def write_kv(key: Tensor, value: Tensor | None, cache: Tensor, slots: Tensor) -> None:
    """Write key and value [num_slots, kv_heads, head_size] to their slots, int64 [num_slots].

    Value None: only keys are cached.
    """
    num_slots, kv_heads, size = key.shape
    if not num_slots:
        return
    value = key if value is None else value
    block = next_power_of_2(kv_heads * size)
    _write_kv[num_slots, cache.shape[1]](
        key, key.stride(0), key.stride(1), value, value.stride(0), value.stride(1),
        cache, cache.stride(0), cache.stride(1), cache.stride(2), cache.stride(3), slots,
        BLOCK_SIZE=cache.shape[2], HEADS=kv_heads, SIZE=size, BLOCK=block, num_warps=warps(block),
    )  # fmt: skip


@triton.jit
def _write_kv(
    key, key_token, key_head, value, value_token, value_head,
    cache, cache_block, cache_vector, cache_slot, cache_head, slots,
    BLOCK_SIZE: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: the key or the value of a token."""
    token = tl.program_id(0).to(tl.int64)
    vector = tl.program_id(1)
    element = tl.arange(0, BLOCK)
    mine = element < HEADS * SIZE
    head = element // SIZE
    slot = tl.load(slots + token)
    at = (
        cache
        + slot // BLOCK_SIZE * cache_block
        + slot % BLOCK_SIZE * cache_slot
        + vector * cache_vector
    )
    if vector == 0:
        read = tl.load(key + token * key_token + head * key_head + element % SIZE, mask=mine)
        tl.store(
            at + head * cache_head + element % SIZE, read.to(cache.dtype.element_ty), mask=mine
        )
    else:
        read = tl.load(value + token * value_token + head * value_head + element % SIZE, mask=mine)
        tl.store(
            at + head * cache_head + element % SIZE, read.to(cache.dtype.element_ty), mask=mine
        )


def copy_blocks(source: Tensor, target: Tensor, pairs: Tensor) -> None:
    """Copy whole blocks: `pairs` int64 [n, 2] has the block of `source` and the block of `target`.

    Both are contiguous with blocks first, of any dtype and equal block bytes. Copies are made in
    any order, so no target may be the source of another pair.
    """
    source, target = (memory.view(len(memory), -1).view(torch.uint8) for memory in (source, target))
    width = source.shape[1]
    if len(pairs) and width:
        _copy_blocks[len(pairs), triton.cdiv(width, BYTES_AT_ONCE)](
            source,
            target,
            source.stride(0),
            target.stride(0),
            pairs,
            width,
            AT_ONCE=BYTES_AT_ONCE,
            num_warps=4,
        )


@triton.jit
def _copy_blocks(source, target, source_block, target_block, pairs, width, AT_ONCE: tl.constexpr):
    pair = pairs + tl.program_id(0) * 2
    element = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    read = tl.load(source + tl.load(pair) * source_block + element, mask=element < width)
    tl.store(target + tl.load(pair + 1) * target_block + element, read, mask=element < width)
