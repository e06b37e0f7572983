"""Makes plain numbers of stored ones, a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from engine_gguf.kinds import Kind

_PLAIN: Final = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_PIECE: Final = 1 << 22
"""Numbers that are in memory in float32 at a time."""


def as_stored(data: torch.Tensor, kind: Kind, shape: tuple[int, ...]) -> torch.Tensor:
    """Return bytes as what they are: plain numbers, or uint8 [..., blocks, bytes of a block]."""
    if kind.name in _PLAIN:
        dtype = _PLAIN[kind.name]
        if data.data_ptr() % dtype.itemsize:
            data = data.clone()  # a view must start at a multiple of its item
        return data.view(dtype).view(shape)
    return data.view(*shape[:-1], shape[-1] // kind.inputs, kind.num_bytes)


def as_plain(stored: torch.Tensor, kind: Kind, dtype: torch.dtype) -> torch.Tensor:
    """Return the numbers [..., columns] of what `as_stored` gives; blocks become numbers of
    `dtype`.
    """
    if kind.name in _PLAIN:
        return stored
    out = torch.empty(*stored.shape[:-2], stored.shape[-2] * kind.inputs, dtype=dtype)
    if stored.is_meta:
        return out.to("meta")
    flat = out.view(-1, out.shape[-1])
    rows = stored.reshape(-1, *stored.shape[-2:])
    for first, last in _pieces(*flat.shape):
        flat[first:last] = unblocked(rows[first:last], kind)
    return out


def unblocked(rows: torch.Tensor, kind: Kind) -> torch.Tensor:
    """Return float32 [rows, columns] of uint8 [rows, blocks, bytes of a block]."""
    from gguf import (
        GGMLQuantizationType,
    )  # lazy: only for blocks that are not multiplied by as they are
    from gguf.quants import dequantize

    flat = rows.reshape(len(rows), rows.shape[1] * rows.shape[2]).numpy()
    return torch.from_numpy(dequantize(flat, GGMLQuantizationType[kind.name])).view(len(rows), -1)


def _pieces(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    each = max(1, _PIECE // columns)
    for first in range(0, rows, each):
        yield first, min(rows, first + each)
