"""Weights of eight-bit floats or table codes with group scales, and GEMM with them."""

from __future__ import annotations

from typing import Final

import torch

from core_kernels.library import Library
from core_kernels.packed import as_rows
from core_kernels.quantized import (
    FACTOR_BYTES,
    LARGEST_GROUP,
    WIDTH_MULTIPLE,
    convert_scales,
    row_bytes,
)
from core_kernels.row_ops import DTYPES
from core_kernels.tiled import ScaledOps

Tensor = torch.Tensor

KINDS: Final = {torch.float8_e4m3fn: 0, torch.float8_e5m2: 1, torch.uint8: 2}
"""Kind numbers of the library; bytes are codes of a table."""
TABLE_SIZE: Final = 16
SCALES: Final = (torch.float32, torch.int16, torch.float8_e8m0fnu)
"""Types of scales; the index is the library's number."""
MAX_FRACTION: Final = 32767


class FloatOps(ScaledOps):
    """GEMM with eight-bit floats, or (uint8) four-bit codes of a table that is rounded to x's
    dtype.

    Bitwise batch-invariant. `group` is the number of inputs that share a scale. `scales` is their
    dtype: float32; float8_e8m0fnu (powers of two); or int16, a fraction of the row's largest scale
    in units of 1/32767, rounded to nearest.
    """

    def __init__(
        self,
        library: Library,
        kind: torch.dtype,
        group: int,
        table: Tensor | None = None,
        *,
        scales: torch.dtype = torch.float32,
    ) -> None:
        if (
            kind not in KINDS
            or not WIDTH_MULTIPLE <= group <= LARGEST_GROUP
            or group % WIDTH_MULTIPLE
        ):
            kinds = ", ".join(map(str, KINDS))
            allowed = f"{kinds}; groups are multiples of {WIDTH_MULTIPLE} up to {LARGEST_GROUP}"
            raise ValueError(f"{kind} in groups of {group}: floats are {allowed}")
        if (table is not None and len(table) == TABLE_SIZE) != (kind == torch.uint8):
            raise ValueError(
                f"{kind} with {'no table' if table is None else f'a table of {len(table)}'}: uint8 "
                "has one of 16"
            )
        if scales not in SCALES:
            raise ValueError(
                f"scales of {scales}; they are of one of {', '.join(map(str, SCALES))}"
            )
        self.bits: Final = 4 if kind == torch.uint8 else 8
        self.kind: Final = kind
        self.group: Final = group
        self.scales: Final = scales
        self.uses_fractions: Final = scales == torch.int16
        self.table: Final = None if table is None else table.float().contiguous()
        facts = (
            group,
            SCALES.index(scales),
            KINDS[kind],
            0 if self.table is None else self.table.data_ptr(),
        )
        super().__init__(library, library.core_floats_rows, facts, f"floats of {self.bits} bits")
        self._pack_codes: Final = library.core_floats_pack_codes
        self._linear: Final = library.core_floats_linear
        self._grouped = library.core_floats_grouped

    def row_bytes(self, width: int) -> int:
        """Return the bytes of a row, including its scales."""
        return FACTOR_BYTES * self.uses_fractions + row_bytes(
            width, self.bits, self.group, self.scales.itemsize
        )

    def pack_codes(
        self, weight: Tensor, rows: int, first: int, values: Tensor, scales: Tensor
    ) -> None:
        """Write floats or codes [n, width] of this kind and scales [n, groups] to rows from
        `first`.
        """
        count, width = values.shape
        self._fits(weight, width)
        if scales.shape != (count, -(-width // self.group)) or values.dtype != self.kind:
            raise ValueError(
                f"{values.dtype} {list(values.shape)} with scales {list(scales.shape)} in groups "
                f"of {self.group} of {self.kind}"
            )
        if weight.is_meta:  # memory plan: no data
            return
        values = values.contiguous()
        scales = scales.float().contiguous()
        factors = None
        if self.uses_fractions:
            factors = scales.abs().amax(1, keepdim=True) / MAX_FRACTION
            scales = (scales / torch.where(factors == 0, 1, factors)).round()
        scales = convert_scales(scales, self.scales)
        self._pack_codes(
            weight.data_ptr(), values.data_ptr(), scales.data_ptr(),
            None if factors is None else factors.data_ptr(), first, count, width, values.stride(0),
            rows,
            *self._facts[:3],
        )  # fmt: skip

    def linear(self, x: Tensor, weight: Tensor, rows: int) -> Tensor:
        """Return x @ weight.T, [..., rows]."""
        flat = self._rows_of(x, weight)
        width = x.shape[-1]
        out = x.new_empty(*x.shape[:-1], rows)
        self._linear(
            out.data_ptr(), flat.data_ptr(), weight.data_ptr(), flat.shape[0], rows, width,
            flat.stride(0),
            *self._facts, DTYPES[x.dtype],
        )  # fmt: skip
        return out

    def _rows_of(self, x: Tensor, weight: Tensor) -> Tensor:
        self._fits(weight, x.shape[-1])
        return as_rows(x)
