"""Tensor types of GGUF files, and dequantization, a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import torch


class TensorType(NamedTuple):
    """A type by its name in ggml."""

    name: str
    inputs: int
    """Numbers of a row per block; 1: plain numbers."""
    num_bytes: int
    """Bytes per block."""


TENSOR_TYPES: Final = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
}
"""By type number. Integer types (I8 to I64) are no weights."""
KERNEL_TYPES: Final = frozenset(
    ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
)
"""Types with block kernels; others are dequantized on load."""
FORMAT_TYPES: Final = frozenset(("MXFP4", "IQ4_NL"))
"""Types that the device's stored-format kernels multiply: in four and in eight bits."""


_PLAIN: Final = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_PIECE: Final = 1 << 22
"""Numbers dequantized to float32 at a time."""


def view_stored(data: torch.Tensor, kind: TensorType, shape: tuple[int, ...]) -> torch.Tensor:
    """Return bytes as plain numbers, or as uint8 [..., blocks, bytes of a block]."""
    if kind.name in _PLAIN:
        dtype = _PLAIN[kind.name]
        if data.data_ptr() % dtype.itemsize:
            data = data.clone()  # a view must be aligned to its item size
        return data.view(dtype).view(shape)
    return data.view(*shape[:-1], shape[-1] // kind.inputs, kind.num_bytes)


def dequantize(stored: torch.Tensor, kind: TensorType, dtype: torch.dtype) -> torch.Tensor:
    """Return the numbers [..., columns] of a `view_stored` result; blocks become `dtype`."""
    if kind.name in _PLAIN:
        return stored
    out = torch.empty(*stored.shape[:-2], stored.shape[-2] * kind.inputs, dtype=dtype)
    if stored.is_meta:
        return out.to("meta")
    flat = out.view(-1, out.shape[-1])
    rows = stored.reshape(-1, *stored.shape[-2:])
    for first, last in _pieces(*flat.shape):
        flat[first:last] = dequantize_blocks(rows[first:last], kind)
    return out


def dequantize_blocks(rows: torch.Tensor, kind: TensorType) -> torch.Tensor:
    """Return float32 [rows, columns] of uint8 [rows, blocks, bytes of a block]."""
    # Lazy: only for dequantized blocks
    from gguf import (
        GGMLQuantizationType,
    )
    from gguf.quants import dequantize

    flat = rows.reshape(len(rows), rows.shape[1] * rows.shape[2]).numpy()
    return torch.from_numpy(dequantize(flat, GGMLQuantizationType[kind.name])).view(len(rows), -1)


def _pieces(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    each = max(1, _PIECE // columns)
    for first in range(0, rows, each):
        yield first, min(rows, first + each)
