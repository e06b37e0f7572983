"""Weights rounded to integers of eight or four bits with a scale for each group of inputs, and
products with them.
"""

from __future__ import annotations

from typing import Final

import torch

from core_kernels.library import Library
from core_kernels.row_ops import DTYPES
from core_kernels.tiled import ScaledOps

Tensor = torch.Tensor

FILLED: Final = 8
"""Rows are filled up to a multiple of it."""
FACTOR_BYTES: Final = 4
LARGEST_GROUP: Final = 256
"""Sums of a group must fit 32 bits."""


FOUR_BIT_FLOATS: Final = (0, 1, 2, 3, 4, 6, 8, 12)
"""What codes of four-bit floats (E2M1) stand for, twice as large; all of them with either sign."""
FLOAT_CODE: Final = 12
"""The number by which the library knows those; it knows integers by their bits."""
SCALES: Final = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e8m0fnu)
"""Types of scales; the library knows them by their places here."""
ZEROS: Final = (None, torch.int16, torch.float16)
"""Types of zero points; the library knows them by their places here."""


class QuantizedOps(ScaledOps):
    """Integers of eight or four bits, or floats of four.

    A product's row depends on its row of x alone. `group` is how many inputs share a scale;
    `scales` is what those are, bfloat16 or float16; of floats also powers of two (float8_e8m0fnu),
    or float8_e4m3fn, of which each row has a factor. `zeros`: each group has a zero point as well,
    an integer (int16) or not (float16). `is_float`: codes are four-bit floats, twice as large.
    Weights that are rounded here are integers with scales in bfloat16 and without zero points.
    `x_bits`: what x is rounded to unless it is float32; 16 loses next to nothing, 8, for weights of
    8 bits, takes one scale for a row of x.
    """

    def __init__(
        self,
        library: Library,
        bits: int,
        group: int,
        scales: torch.dtype = torch.bfloat16,
        *,
        zeros: torch.dtype | None = None,
        is_float: bool = False,
        x_bits: int = 16,
    ) -> None:
        if bits not in (4, 8) or not FILLED <= group <= LARGEST_GROUP or group % FILLED:
            allowed = f"bits are 4 or 8, groups multiples of {FILLED} up to {LARGEST_GROUP}"
            raise ValueError(f"{bits} bits in groups of {group}: {allowed}")
        if zeros not in ZEROS or (is_float and (bits != 4 or zeros is not None)):
            raise ValueError(
                f"{'floats' if is_float else 'integers'} of {bits} bits with zero points of "
                f"{zeros}: these are of int16 or "
                "float16, and floats are of 4 bits and have none"
            )
        if scales not in SCALES:
            raise ValueError(
                f"scales of {scales}; they are of one of {', '.join(map(str, SCALES))}"
            )
        if scales.itemsize == 1 and not is_float:
            raise ValueError(f"scales of {scales} beside integers: these need scales of two bytes")
        if x_bits not in (16, bits):
            raise ValueError(
                f"rows of {x_bits} bits by weights of {bits}: both are 8, or rows are of 16"
            )
        self.bits: Final = bits
        self.group: Final = group
        self.scales: Final = scales
        self.has_factors: Final = scales == torch.float8_e4m3fn
        self.zeros: Final = zeros
        self.has_zeros: Final = zeros is not None
        self.is_float: Final = is_float
        self.x_bits: Final = x_bits
        self._code: Final = FLOAT_CODE if is_float else bits
        facts = (self._code, group, SCALES.index(scales), ZEROS.index(zeros))
        super().__init__(library, library.core_quantized_rows, facts, f"{bits} bits")
        self._pack: Final = library.core_quantize
        self._place: Final = library.core_quantized_place
        self._linear: Final = library.core_quantized_linear
        self._grouped = library.core_quantized_grouped

    def row_bytes(self, width: int) -> int:
        """Return how many bytes a row takes, its scales and zero points included."""
        group_bytes = self.scales.itemsize + (0 if self.zeros is None else self.zeros.itemsize)
        return FACTOR_BYTES * self.has_factors + row_bytes(
            width, self.bits, self.group, group_bytes
        )

    def pack(self, weight: Tensor, rows: int, first: int, tensor: Tensor) -> None:
        """Round a plain [n, width], with any strides, to rows from `first` on of a weight of so
        many rows.
        """
        self._fits(weight, tensor.shape[1])
        if self.zeros is not None or self.is_float or self.scales != torch.bfloat16:
            raise ValueError(
                "plain weights are rounded to integers without zero points and with scales in "
                "bfloat16"
            )
        if weight.is_meta:  # of a model that is only planned
            return
        tensor = tensor if tensor.dtype in DTYPES else tensor.float()
        self._pack(
            weight.data_ptr(), tensor.data_ptr(), first, *tensor.shape, *tensor.stride(), rows,
            self._code, self.group, DTYPES[tensor.dtype],
        )  # fmt: skip

    def place(
        self,
        weight: Tensor,
        rows: int,
        first: int,
        codes: Tensor,
        scales: Tensor,
        zeros: Tensor | None = None,
        factors: Tensor | None = None,
    ) -> None:
        """Fill rows from `first` on with int8 codes [n, width], and scales [n, groups], and zero
        points of that shape.

        Of four bits, codes are -8 to 7, or, of floats, `FOUR_BIT_FLOATS`. A number is (code - zero)
        * scale, times the factor of its row where rows have some: n of them, of any shape.
        """
        count, width = codes.shape
        self._fits(weight, width)
        if scales.shape != (count, -(-width // self.group)) or codes.dtype != torch.int8:
            raise ValueError(
                f"codes of {codes.dtype} {list(codes.shape)} with scales {list(scales.shape)} in "
                f"groups of {self.group}"
            )
        if (zeros is None) != (self.zeros is None) or (
            zeros is not None and zeros.shape != scales.shape
        ):
            found = "none" if zeros is None else list(zeros.shape)
            wanted = "none" if self.zeros is None else list(scales.shape)
            raise ValueError(f"zero points: {found}; the weight has {wanted}")
        if (factors is not None) != self.has_factors or (
            factors is not None and factors.numel() != count
        ):
            found = "none" if factors is None else list(factors.shape)
            raise ValueError(
                f"factors of rows: {found}; the weight has {count if self.has_factors else 'none'}"
            )
        if weight.is_meta:
            return
        codes = codes.contiguous()
        scales = kept_scales(scales, self.scales).contiguous()
        zeros = None if zeros is None else zeros.to(self.zeros).contiguous()
        factors = None if factors is None else factors.float().contiguous()
        more = (None if each is None else each.data_ptr() for each in (zeros, factors))
        self._place(
            weight.data_ptr(), codes.data_ptr(), scales.data_ptr(), *more, first, count, width, codes.stride(0), rows, *self._facts,
        )  # fmt: skip

    def linear(self, x: Tensor, weight: Tensor, rows: int, order: Tensor | None = None) -> Tensor:
        """Return x @ weight.T, [..., rows].

        `order` int32, contiguous: the number of x for each column of the weight, as many as there
        are.
        """
        flat = self._rows_of(x, weight)
        width = x.shape[-1]
        out = x.new_empty(*x.shape[:-1], rows)
        self._linear(
            out.data_ptr(), flat.data_ptr(), weight.data_ptr(), None if order is None else order.data_ptr(),
            flat.shape[0], rows, width, flat.stride(0), *self._told(x),
        )  # fmt: skip
        return out

    def _told(self, x: Tensor) -> tuple[int, ...]:
        return (*self._facts, 16 if x.dtype == torch.float32 else self.x_bits, DTYPES[x.dtype])


def kept_scales(scales: Tensor, kind: torch.dtype) -> Tensor:
    """Return scales of a type.

    Powers of two lose nothing, but those below 2^-126, the least that float32 has whole, become 0.
    """
    if kind != torch.float8_e8m0fnu:
        return scales.to(kind)
    return (scales.float().view(torch.int32) >> 23).to(torch.uint8)


def row_bytes(width: int, bits: int, group: int, group_bytes: int = 2) -> int:
    """Return how many bytes a row takes, with so many for each group beside its codes."""
    return group_bytes * -(-width // group) + -(-width // FILLED) * FILLED * bits // 8
