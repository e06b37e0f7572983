"""Keys and values of a step on their way to the cache, and blocks of caches on their way elsewhere.

A cache is [num_blocks, vectors, block_size, kv_heads, head_size]; a slot is block * block_size +
offset.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from core_kernels.triton.launching import rounded, warps

Tensor = torch.Tensor

BYTES_AT_ONCE = 4096
"""Of a block that is copied, by one program."""


def write(key: Tensor, value: Tensor | None, cache: Tensor, slots: Tensor) -> None:
    """Write key and value [num_slots, kv_heads, head_size] to their slots, int64 [num_slots]; None:
    keys are all there is.
    """
    num_slots, kv_heads, size = key.shape
    if not num_slots:
        return
    value = key if value is None else value
    block = rounded(kv_heads * size)
    _write[num_slots, cache.shape[1]](
        key, key.stride(0), key.stride(1), value, value.stride(0), value.stride(1),
        cache, cache.stride(0), cache.stride(1), cache.stride(2), cache.stride(3), slots,
        BLOCK_SIZE=cache.shape[2], HEADS=kv_heads, SIZE=size, BLOCK=block, num_warps=warps(block),
    )  # fmt: skip


@triton.jit
def _write(
    key, key_token, key_head, value, value_token, value_head,
    cache, cache_block, cache_vector, cache_slot, cache_head, slots,
    BLOCK_SIZE: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program: the key of a token, or its value."""
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
    """Copy whole blocks: `pairs` int64 [n, 2] has the block of `source` and that of `target` it
    goes to.

    Both are contiguous with blocks first, of any dtype, and have blocks of equal bytes. No target
    may be a source of another pair: copies are made in any order.
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
