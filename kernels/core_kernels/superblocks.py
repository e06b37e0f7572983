"""Weights as GGUF blocks in the kernels' layout, and GEMM with them."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

from core_kernels.library import Library
from core_kernels.row_ops import DTYPES
from core_kernels.tiled import TiledOps

Tensor = torch.Tensor


class Block(NamedTuple):
    """A kind of GGUF block."""

    number: int
    """Type number in GGUF files."""
    inputs: int
    """Elements of a row per block."""
    num_bytes: int


KINDS: Final = {
    "Q4_0": Block(2, 32, 18),
    "Q4_1": Block(3, 32, 20),
    "Q5_0": Block(6, 32, 22),
    "Q5_1": Block(7, 32, 24),
    "Q8_0": Block(8, 32, 34),
    "Q2_K": Block(10, 256, 84),
    "Q3_K": Block(11, 256, 110),
    "Q4_K": Block(12, 256, 144),
    "Q5_K": Block(13, 256, 176),
    "Q6_K": Block(14, 256, 210),
}
"""Block kinds that are multiplied without conversion."""


class SuperblockOps(TiledOps):
    """GEMM with one kind of GGUF block.

    Bitwise batch-invariant. Rows of x are quantized to `x_bits`: 16, nearly lossless for bfloat16,
    or 8 with a scale per weight group (16 or 32 inputs), twice as fast with many rows. None: 16 for
    float32, else 8.
    """

    def __init__(self, library: Library, kind: str, x_bits: int | None = None) -> None:
        self.kind: Final = kind
        self.block: Final = KINDS[kind]
        self.x_bits: Final = x_bits
        super().__init__(library, library.core_superblock_rows, (self.block.number,), kind)
        self._pack: Final = library.core_superblock_pack
        self._linear: Final = library.core_superblock_linear
        self._grouped: Final = library.core_superblock_grouped

    def empty(self, rows: int, width: int, count: int | None = None) -> Tensor:
        """Return memory for a weight [rows, width], or for `count` of them, in whole tiles."""
        return self._allocate(rows, width, count)

    def row_bytes(self, width: int) -> int:
        """Return the bytes of a row.

        Raises `ValueError` for a width that is not a multiple of the block.
        """
        if width % self.block.inputs:
            raise ValueError(
                f"rows of {width} numbers are not made of whole {self.kind} blocks of "
                f"{self.block.inputs}"
            )
        return width // self.block.inputs * self.block.num_bytes

    def pack(self, weight: Tensor, rows: int, first: int, tensor: Tensor) -> None:
        """Pack uint8 [n, blocks, block bytes] into rows from `first` of a weight of `rows` rows."""
        if (
            tensor.dtype is not torch.uint8
            or tensor.dim() != 3
            or tensor.shape[2] != self.block.num_bytes
        ):
            raise ValueError(
                f"{self.kind} blocks have {self.block.num_bytes} bytes; given {list(tensor.shape)}"
            )
        self._fits(weight, tensor.shape[1] * self.block.inputs)
        if weight.is_meta:  # memory plan: no data
            return
        if tensor.stride(2) != 1 or tensor.stride(1) != self.block.num_bytes:
            tensor = tensor.contiguous()
        self._pack(
            weight.data_ptr(),
            tensor.data_ptr(),
            first,
            *tensor.shape[:2],
            tensor.stride(0),
            rows,
            self.block.number,
        )

    def linear(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """Write x [n, width] @ weight.T to `out` [n, rows], which may be a slice of a wider
        tensor.
        """
        x = self._readable(x, weight)
        self._linear(
            out.data_ptr(), x.data_ptr(), weight.data_ptr(), len(x), out.shape[1], x.shape[1],
            x.stride(0), out.stride(0), self.block.number, self._bits_of(x), DTYPES[x.dtype],
        )  # fmt: skip

    def grouped(self, x: Tensor, weights: Tensor, counts: Tensor, out: Tensor) -> None:
        """Write the product of each row of x with one of `weights` to `out`.

        The first counts[0] rows use the first weight, and so on; `counts` is int64, one per weight.
        """
        x = self._readable(x, weights)
        self._grouped(
            out.data_ptr(), x.data_ptr(), weights.data_ptr(), counts.data_ptr(), len(weights),
            out.shape[1], x.shape[1],
            x.stride(0), out.stride(0), self.block.number, self._bits_of(x), DTYPES[x.dtype],
        )  # fmt: skip

    def _bits_of(self, x: Tensor) -> int:
        return self.x_bits or (16 if x.dtype == torch.float32 else 8)

    def _readable(self, x: Tensor, weight: Tensor) -> Tensor:
        self._fits(weight, x.shape[1])
        return x if x.stride(1) == 1 else x.contiguous()
