"""What an attention kernel is launched for: a layer, a step, and heads by program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton

from core_kernels.triton.launching import MIN_DOT_SIZE, next_power_of_2

Tensor = torch.Tensor

PIECE: Final = 64
"""Keys per piece, and per tile unless heads are long."""
MAX_ROWS: Final = 64
"""Maximum query rows (queries times heads) of a program."""
LONG_HEAD: Final = 128
"""Longer heads have half as many keys per tile, to fit the shared memory of every device, and
twice as many warps, to fit their registers.
"""
MAX_WIDE_ROWS: Final = 16
"""Maximum query rows of a program for heads of more than `WIDE_HEAD` elements: latent ones."""
WIDE_HEAD: Final = 256


@dataclass(frozen=True, slots=True)
class Layer:
    """The constant attention parameters of a layer; 0 or None: unused."""

    heads: int
    kv_heads: int
    head_size: int
    value_size: int
    scale: float
    is_latent: bool = False
    """Values are the first `value_size` elements of keys."""
    causal: bool = True
    window: int = 0
    chunk: int = 0
    softcap: float = 0.0
    alibi: Tensor | None = None
    sinks: Tensor | None = None
    distance_bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The sequences of a step. Tensors are on the device."""

    starts: Tensor
    """[num_seqs + 1] int32: cumulative token counts."""
    lengths: Tensor
    """[num_seqs] int64: number of keys, this step's included."""
    table: Tensor
    """[num_seqs, max_blocks] int32: block tables."""
    block_size: int
    num_tokens: int
    queries: int | None = None
    """Approximate number of queries per sequence; None: the average."""


@dataclass(frozen=True, slots=True)
class Selected:
    """The positions that the query of each sequence attends to. Tensors are on the device.

    The lengths of the step are numbers of positions.
    """

    positions: Tensor
    """[num_seqs, top_k] int32."""
    owners: Tensor
    """[num_seqs] int32: the row of its block table."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """How the heads of a layer are distributed over programs."""

    heads: int
    """Query heads per program, all of one KV head."""
    parts: int
    """Programs per KV head."""
    rows: int
    main: int
    """Elements that keys and values have in common, or all, padded to a power of two."""
    rest: int
    """Remaining elements of the keys, padded to a power of two; 0: none."""

    @property
    def is_long(self) -> bool:
        """Return whether heads are longer than `LONG_HEAD`."""
        return self.main > LONG_HEAD

    @classmethod
    def of(cls, layer: Layer, queries: int) -> AttentionShape:
        group = layer.heads // layer.kv_heads
        main = next_power_of_2(layer.value_size, MIN_DOT_SIZE)
        row_limit = MAX_WIDE_ROWS if main > WIDE_HEAD else MAX_ROWS
        heads = min(next_power_of_2(group), row_limit)
        rows = max(MIN_DOT_SIZE, heads, min(row_limit, next_power_of_2(queries * heads)))
        rest = layer.head_size - layer.value_size
        return cls(
            heads,
            triton.cdiv(group, heads),
            rows,
            main,
            next_power_of_2(rest, MIN_DOT_SIZE) if rest else 0,
        )
