"""KV cache specs of layers, and the layout of the cache. Plain data, torch-free.

Layers with the same spec form a group and share one block table. Groups with pages of
equal bytes share one pool of blocks; the others have their own pool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

DTYPE_BYTES: Final = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
}
SCALE_BYTES: Final = 4
"""Bytes of the float32 scale after a quantized vector."""
STATE_ALIGNMENT: Final = 16


class FullAttention(msgspec.Struct, frozen=True, tag="full"):
    """Keys and values of every earlier token."""

    kv_heads: int
    head_size: int
    dtype: str
    block_size: int | None = None
    """Tokens per block; None: the configured block size."""
    scaled: bool = False
    """Whether each vector is followed by its own float32 scale; only with one-byte dtypes."""
    top_k: int = 0
    """Tokens that a query attends to, selected by an indexer; 0: all."""
    spare: int = 0
    """Additional blocks for features that decode several branches of one row (tree speculation)."""

    @property
    def row_size(self) -> int:
        """Elements of `dtype` per vector, including its scale."""
        return self.head_size + (SCALE_BYTES if self.scaled else 0)

    @property
    def vectors(self) -> int:
        """Vectors cached per head and token: key and value."""
        return 2

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in one layer."""
        return self.vectors * self.kv_heads * self.row_size * DTYPE_BYTES[self.dtype]

    def page_bytes(self, block_size: int) -> int:
        """Bytes of one block in one layer."""
        return block_size * self.token_bytes


class LatentKeys(FullAttention, frozen=True, tag="latent"):
    """Latents of every earlier token (MLA): the value is the beginning of the key."""

    @property
    def vectors(self) -> int:
        """Vectors cached per head and token: one."""
        return 1


class IndexKeys(FullAttention, frozen=True, tag="index", kw_only=True):
    """Keys of an indexer, or compressed keys, as plain rows: one of every `rate` tokens."""

    top_k: int
    """Rows that a query attends to; 0: all."""
    selects_blocks: bool = False
    """Whether blocks of keys are selected, not single ones."""
    rate: int = 1
    """Tokens per row; divides the block size."""

    @property
    def vectors(self) -> int:
        """Vectors cached per head and row: one."""
        return 1

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in one layer, rounded up."""
        return -(-super().token_bytes // self.rate)

    def page_bytes(self, block_size: int) -> int:
        """Bytes of one block in one layer."""
        return -(-block_size // self.rate) * super().token_bytes


class SlidingWindow(FullAttention, frozen=True, tag="sliding", kw_only=True):
    """Keys and values of the last `window` tokens, including the current one."""

    window: int


class SlidingLatents(SlidingWindow, frozen=True, tag="sliding_latent", kw_only=True):
    """Latents of the last `window` tokens, including the current one."""

    @property
    def vectors(self) -> int:
        """Vectors cached per head and token: one."""
        return 1


class SlidingRows(SlidingWindow, frozen=True, tag="sliding_rows", kw_only=True):
    """Plain rows of the last `window` tokens, including the current one."""

    @property
    def vectors(self) -> int:
        """Vectors cached per head and token: one."""
        return 1


class ChunkedLocal(FullAttention, frozen=True, tag="chunked", kw_only=True):
    """Keys and values from the start of the current chunk of `chunk` positions."""

    chunk: int


class CrossAttention(FullAttention, frozen=True, tag="cross", kw_only=True):
    """Keys and values of the encoder output, computed once per request."""

    max_len: int
    """Maximum encoder positions of a request."""
    input_in_keys: bool = False
    """Whether the encoder input is part of prefix keys (spans of the prompt)."""


class RecurrentState(msgspec.Struct, frozen=True, tag="recurrent"):
    """State of a recurrent layer, with a fixed size per sequence.

    Block i of a request holds the state after the last token computed in [i * B, (i + 1) * B).
    A token at position p reads the block of p - 1 and writes its own block. A full block holds the
    state at a block boundary.
    """

    parts: tuple[tuple[tuple[int, ...], str], ...]
    """Shape and dtype of each tensor of the state."""
    block_size: int | None = None
    """Tokens between two cached states; None: the configured number."""
    spare: int = 0
    """Additional states for the draft tokens of one step, until they are verified."""

    @property
    def part_bytes(self) -> list[int]:
        """Bytes of each part, padded to the alignment of any dtype."""
        sizes = (math.prod(shape) * DTYPE_BYTES[dtype] for shape, dtype in self.parts)
        return [-(-size // STATE_ALIGNMENT) * STATE_ALIGNMENT for size in sizes]

    def page_bytes(self, block_size: int) -> int:
        """Bytes of one block in one layer, independent of its number of tokens."""
        del block_size
        return sum(self.part_bytes)


KVSpec = (
    FullAttention
    | LatentKeys
    | IndexKeys
    | SlidingWindow
    | SlidingLatents
    | SlidingRows
    | ChunkedLocal
    | CrossAttention
)
"""Cache spec of an attention layer: one or two vectors of every visible token."""
CacheSpec = KVSpec | RecurrentState


class LayerKV(msgspec.Struct, frozen=True):
    """Cache of one layer: its weight prefix and its spec. A layer with two mixers has two."""

    name: str
    spec: CacheSpec


class GroupLayout(msgspec.Struct, frozen=True):
    """Layers that share one block table per request."""

    spec: CacheSpec
    layers: list[int]
    """Indices into the model's caching layers; the i-th one uses layer slot i of the pool."""
    block_size: int
    pool: int


class PoolLayout(msgspec.Struct, frozen=True):
    """Blocks of equal bytes, shared by the groups of this pool."""

    num_blocks: int
    slot_bytes: int
    """Bytes of one block in one layer slot."""
    num_slots: int
    """Layer slots per block."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layer slots."""
        return self.slot_bytes * self.num_slots


class KVLayout(msgspec.Struct, frozen=True):
    """Layout of one worker's KV memory, computed by `core.kv.layout`."""

    groups: list[GroupLayout]
    pools: list[PoolLayout]
    hash_block_size: int
    """Tokens per prefix hash; divides every group's block size."""

    def first_spare_block(self, group: int) -> int:
        """Return a group's first spare block; spare blocks follow the pool's blocks, group by
        group.
        """
        pool = self.groups[group].pool
        return self.pools[pool].num_blocks + num_spare_blocks(self.groups[:group], pool)

    def padding_block(self, group: int) -> int:
        """Return the block that padding rows may write.

        Block 0 of states is the initial state, so states have a padding block of their own.
        """
        spec = self.groups[group].spec
        return self.first_spare_block(group) + spec.spare if isinstance(spec, RecurrentState) else 0


def num_spare_blocks(groups: Sequence[GroupLayout], pool: int) -> int:
    """Return the number of spare blocks of a pool's groups, including padding blocks."""
    return sum(g.spec.spare + isinstance(g.spec, RecurrentState) for g in groups if g.pool == pool)
