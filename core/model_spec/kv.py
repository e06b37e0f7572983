"""What a layer keeps in the KV cache, and how the cache is laid out. Torch-free, plain data.

Layers of one spec share block tables; a set of layers that shares one table is a group. Groups
whose pages have equal bytes draw from one pool of blocks; others have their own.
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
"""Of a float32 behind a vector."""
STATE_ALIGNMENT: Final = 16


class FullAttention(msgspec.Struct, frozen=True, tag="full"):
    """Keys and values of every earlier token."""

    kv_heads: int
    head_size: int
    dtype: str
    block_size: int | None = None
    """Tokens per block; None takes the configured size."""
    scaled: bool = False
    """Each vector has a factor of its own behind it, a float32; the dtype has one byte then."""
    spare: int = 0
    """Blocks beside those that requests get, for features that let a row go on in several ways at
    once.
    """

    @property
    def row_size(self) -> int:
        """Elements of `dtype` that a vector takes, its factor included."""
        return self.head_size + (SCALE_BYTES if self.scaled else 0)

    @property
    def vectors(self) -> int:
        """Kept of each head and token: key and value."""
        return 2

    @property
    def token_bytes(self) -> int:
        """Bytes one token takes in one layer."""
        return self.vectors * self.kv_heads * self.row_size * DTYPE_BYTES[self.dtype]

    def page_bytes(self, block_size: int) -> int:
        """Bytes one block takes in one layer."""
        return block_size * self.token_bytes


class LatentKeys(FullAttention, frozen=True, tag="latent"):
    """Keys of every earlier token, whose beginnings are its values: nothing else is kept."""

    @property
    def vectors(self) -> int:
        """One of each head and token."""
        return 1


class SlidingWindow(FullAttention, frozen=True, tag="sliding", kw_only=True):
    """Keys and values of the last `window` tokens, the current one included."""

    window: int


class ChunkedLocal(FullAttention, frozen=True, tag="chunked", kw_only=True):
    """Keys and values back to the start of the current chunk of `chunk` positions."""

    chunk: int


class CrossAttention(FullAttention, frozen=True, tag="cross", kw_only=True):
    """Keys and values of what an encoder made of the request's input: a number of its own, the same
    in every step.
    """

    max_len: int
    """Most positions that an encoder's input takes."""


class RecurrentState(msgspec.Struct, frozen=True, tag="recurrent"):
    """What a layer made of all earlier tokens, in a place of fixed size.

    Block i of a request holds the state after the last token computed inside [i * B, (i + 1) * B):
    a token at position p reads the block of p - 1 and leaves its state in its own. A full block is
    the state at a boundary.
    """

    parts: tuple[tuple[tuple[int, ...], str], ...]
    """Shape and dtype of each tensor the state consists of."""
    block_size: int | None = None
    """Tokens between two states that can be found again; None takes the configured number."""
    spare: int = 0
    """States beside those of blocks: for the guesses of one step, of which nobody knows yet how
    many hold.
    """

    @property
    def part_bytes(self) -> list[int]:
        """Bytes of each part, filled up so that the next one begins where any dtype may."""
        sizes = (math.prod(shape) * DTYPE_BYTES[dtype] for shape, dtype in self.parts)
        return [-(-size // STATE_ALIGNMENT) * STATE_ALIGNMENT for size in sizes]

    def page_bytes(self, block_size: int) -> int:
        """Bytes one block takes in one layer, however many tokens it stands for."""
        del block_size
        return sum(self.part_bytes)


KVSpec = FullAttention | LatentKeys | SlidingWindow | ChunkedLocal | CrossAttention
"""What attention keeps: something of every token it may still see."""
CacheSpec = KVSpec | RecurrentState


class LayerKV(msgspec.Struct, frozen=True):
    """What one layer of a model keeps: its weight prefix and the spec.

    A layer of two mixers has two of these.
    """

    name: str
    spec: CacheSpec


class GroupLayout(msgspec.Struct, frozen=True):
    """Layers that share one block table per request."""

    spec: CacheSpec
    layers: list[int]
    """Indices into the model's caching layers; the i-th uses slot i of the pool's pages."""
    block_size: int
    pool: int


class PoolLayout(msgspec.Struct, frozen=True):
    """Blocks of equal bytes, shared by all groups that name this pool."""

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
    """How the KV memory of one worker is divided; made by `core.kv.layout`, obeyed by the worker."""

    groups: list[GroupLayout]
    pools: list[PoolLayout]
    hash_block_size: int
    """Tokens per link of the prefix hash chain; divides every group's block size."""

    def first_spare(self, group: int) -> int:
        """Return the first of a group's spare blocks or states: they lie behind its pool's blocks,
        group by group.
        """
        pool = self.groups[group].pool
        return self.pools[pool].num_blocks + num_spare(self.groups[:group], pool)

    def padding_block(self, group: int) -> int:
        """Return where what padding computes may go.

        Block 0 of states is read as the beginning of a sequence: another one.
        """
        spec = self.groups[group].spec
        return self.first_spare(group) + spec.spare if isinstance(spec, RecurrentState) else 0


def num_spare(groups: Sequence[GroupLayout], pool: int) -> int:
    """Return the spare blocks or states of all groups that draw from a pool, with those for
    padding.
    """
    return sum(g.spec.spare + isinstance(g.spec, RecurrentState) for g in groups if g.pool == pool)
