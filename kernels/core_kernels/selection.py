"""Selection of tokens by index keys, and copies of the selected latents, on the CPU."""

from __future__ import annotations

import ctypes
from typing import Final

import torch

from core_kernels.row_ops import DTYPES

Tensor = torch.Tensor

LANES: Final = 16
"""Keys in a tile of the unit layout (`cpu/attention/attention.h`)."""


class _TokenSelection(ctypes.Structure):
    """`TokenSelection` of cpu/attention/selection.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("out", "query", "weights", "keys", "table", "seen")),
        *((name, ctypes.c_int64) for name in ("queries", "heads", "size", "block_size")),
        *((name, ctypes.c_int64) for name in ("block_stride", "row_stride", "count")),
    )


class SelectionOps:
    """Selection of a loaded library. Thread-safe."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._select: Final = library.core_select_tokens
        self._copy: Final = library.core_copy_keys

    def select(
        self, query: Tensor, weights: Tensor, keys: Tensor, table: Tensor, seen: Tensor, count: int
    ) -> Tensor | None:
        """Return the positions [n, count] int32 of the highest scores, ascending.

        Arguments as those of `core.models.ops.selection.select_tokens`. Returns None for
        unsupported inputs. A query's result depends on that query only.
        """
        dtype = DTYPES.get(keys.dtype)
        queries, heads, size = query.shape
        unit = 2 if keys.dtype is torch.bfloat16 else 1
        if dtype is None or query.dtype is not keys.dtype or not keys.is_cpu or size % unit:
            return None
        if (table.dtype, seen.dtype) != (torch.int32, torch.int64):
            return None
        if keys.stride(2) != 1 or weights.dtype is not torch.float32 or not min(query.shape):
            return None
        query, weights, table, seen = (x.contiguous() for x in (query, weights, table, seen))
        out = table.new_empty(queries, count, dtype=torch.int32)
        self._select(
            ctypes.byref(
                _TokenSelection(
                    *(x.data_ptr() for x in (out, query, weights, keys, table, seen)),
                    *(queries, heads, size, keys.shape[1], keys.stride(0), keys.stride(1), count),
                )
            ),
            dtype,
        )
        return out

    def copy_keys(self, cache: Tensor, table: Tensor, positions: Tensor, out: Tensor) -> bool:
        """Copy the keys at int32 positions [n] of one sequence to the first n slots of `out`.

        Both caches are [blocks, 1, 1, block_size, size] in the unit layout; `out` has one block.
        Returns False, and writes nothing, for unsupported inputs.
        """
        block_size, size = cache.shape[3:]
        dtype = DTYPES.get(cache.dtype)
        if dtype is None or out.dtype is not cache.dtype or block_size % LANES or size % LANES:
            return False
        if not (table.dtype is positions.dtype is torch.int32) or cache.shape[1:3] != (1, 1):
            return False
        if not all(x.is_contiguous() for x in (cache, table, positions)):
            return False
        self._copy(
            *(x.data_ptr() for x in (out, cache, table, positions)),
            *(len(positions), block_size, size, dtype),
        )
        return True
