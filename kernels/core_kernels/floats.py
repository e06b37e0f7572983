"""Weights of eight-bit floats, or of codes of a table, with a scale for each group of inputs, and
products with them.
"""

from __future__ import annotations

from typing import Final

import torch

from core_kernels.library import Library
from core_kernels.packed import as_rows
from core_kernels.quantized import FACTOR_BYTES, FILLED, LARGEST_GROUP, kept_scales, row_bytes
from core_kernels.row_ops import DTYPES
from core_kernels.tiled import ScaledOps

Tensor = torch.Tensor

KINDS: Final = {torch.float8_e4m3fn: 0, torch.float8_e5m2: 1, torch.uint8: 2}
"""Numbers by which the library knows them; bytes are codes of a table."""
TABLE_SIZE: Final = 16
SCALES: Final = (torch.float32, torch.int16, torch.float8_e8m0fnu)
"""Types of scales; the library knows them by their places here."""
MOST_SHARES: Final = 32767


class FloatOps(ScaledOps):
    """Floats of eight bits, or, of uint8, codes of four bits of a table of sixteen floats: it is
    rounded to the type of x.

    A product's row depends on its row of x alone. `group` is how many inputs share a scale.
    `scales` is what those are: float32; float8_e8m0fnu, powers of two; or int16, so many 32,767ths
    of the row's largest scale, to the nearest.
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
        if kind not in KINDS or not FILLED <= group <= LARGEST_GROUP or group % FILLED:
            allowed = f"{', '.join(map(str, KINDS))}; groups are multiples of {FILLED} up to {LARGEST_GROUP}"
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
        self.in_shares: Final = scales == torch.int16
        self.table: Final = None if table is None else table.float().contiguous()
        facts = (
            group,
            SCALES.index(scales),
            KINDS[kind],
            0 if self.table is None else self.table.data_ptr(),
        )
        super().__init__(library, library.core_floats_rows, facts, f"floats of {self.bits} bits")
        self._place: Final = library.core_floats_place
        self._linear: Final = library.core_floats_linear
        self._grouped = library.core_floats_grouped

    def row_bytes(self, width: int) -> int:
        """Return how many bytes a row takes, its scales included."""
        return FACTOR_BYTES * self.in_shares + row_bytes(
            width, self.bits, self.group, self.scales.itemsize
        )

    def place(self, weight: Tensor, rows: int, first: int, values: Tensor, scales: Tensor) -> None:
        """Fill rows from `first` on with floats, or codes, [n, width] of this kind and scales [n,
        groups].
        """
        count, width = values.shape
        self._fits(weight, width)
        if scales.shape != (count, -(-width // self.group)) or values.dtype != self.kind:
            raise ValueError(
                f"{values.dtype} {list(values.shape)} with scales {list(scales.shape)} in groups "
                f"of {self.group} of {self.kind}"
            )
        if weight.is_meta:  # of a model that is only planned
            return
        values = values.contiguous()
        scales = scales.float().contiguous()
        factors = None
        if self.in_shares:
            factors = scales.abs().amax(1, keepdim=True) / MOST_SHARES
            scales = (scales / torch.where(factors == 0, 1, factors)).round()
        scales = kept_scales(scales, self.scales)
        self._place(
            weight.data_ptr(), values.data_ptr(), scales.data_ptr(), None if factors is None else factors.data_ptr(), first, count, width, values.stride(0), rows,
            *self._facts[:3],
        )  # fmt: skip

    def linear(self, x: Tensor, weight: Tensor, rows: int) -> Tensor:
        """Return x @ weight.T, [..., rows]."""
        flat = self._rows_of(x, weight)
        width = x.shape[-1]
        out = x.new_empty(*x.shape[:-1], rows)
        self._linear(
            out.data_ptr(), flat.data_ptr(), weight.data_ptr(), flat.shape[0], rows, width, flat.stride(0),
            *self._facts, DTYPES[x.dtype],
        )  # fmt: skip
        return out

    def _rows_of(self, x: Tensor, weight: Tensor) -> Tensor:
        self._fits(weight, x.shape[-1])
        return as_rows(x)
