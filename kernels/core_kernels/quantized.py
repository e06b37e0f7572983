"""Weights of eight- or four-bit codes with group scales, and GEMM with them."""

from __future__ import annotations

from typing import Final

import torch

from core_kernels.library import Library
from core_kernels.row_ops import DTYPES
from core_kernels.tiled import ScaledOps

Tensor = torch.Tensor

WIDTH_MULTIPLE: Final = 8
"""Rows are padded to a multiple of this number of inputs."""
FACTOR_BYTES: Final = 4
LARGEST_GROUP: Final = 256
"""Limit so that the sums of a group fit 32 bits."""


FOUR_BIT_FLOATS: Final = (0, 1, 2, 3, 4, 6, 8, 12)
"""Magnitudes of four-bit floats (E2M1), doubled; each has both signs."""
FLOAT_CODE: Final = 12
"""The library's code number of four-bit floats; integers use their bits."""
SCALES: Final = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e8m0fnu)
"""Types of scales; the index is the library's number."""
ZEROS: Final = (None, torch.int16, torch.float16)
"""Types of zero points; the index is the library's number."""


def _check_format(
    bits: int,
    group: int,
    scales: torch.dtype,
    zeros: torch.dtype | None,
    *,
    is_float: bool,
    x_bits: int,
) -> None:
    """Raise `ValueError` for a format that the library does not have."""
    if bits not in (4, 8) or not WIDTH_MULTIPLE <= group <= LARGEST_GROUP or group % WIDTH_MULTIPLE:
        allowed = f"bits are 4 or 8, groups multiples of {WIDTH_MULTIPLE} up to {LARGEST_GROUP}"
        raise ValueError(f"{bits} bits in groups of {group}: {allowed}")
    if zeros not in ZEROS or (is_float and (bits != 4 or zeros is not None)):
        raise ValueError(
            f"{'floats' if is_float else 'integers'} of {bits} bits with zero points of "
            f"{zeros}: these are of int16 or "
            "float16, and floats are of 4 bits and have none"
        )
    if scales not in SCALES:
        raise ValueError(f"scales of {scales}; they are of one of {', '.join(map(str, SCALES))}")
    if scales.itemsize == 1 and not is_float:
        raise ValueError(f"scales: got {scales} with integer codes; expected bfloat16 or float16")
    if x_bits not in (16, bits):
        raise ValueError(
            f"rows of {x_bits} bits by weights of {bits}: both are 8, or rows are of 16"
        )


class QuantizedOps(ScaledOps):
    """GEMM with integers of eight or four bits, or four-bit floats.

    Bitwise batch-invariant. `group` is the number of inputs that share a scale. `scales` is their
    dtype: bfloat16 or float16; for floats also float8_e8m0fnu (powers of two), or float8_e4m3fn
    with a factor per row. `zeros` is the dtype of zero points per group: int16 or float16.
    `is_float`: codes are doubled four-bit floats. Rounding plain weights gives integers with
    bfloat16 scales and no zero points. `x_bits`: bits of quantized x unless x is float32; 16 is
    nearly lossless, 8 (for 8-bit weights) has one scale per row of x.
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
        _check_format(bits, group, scales, zeros, is_float=is_float, x_bits=x_bits)
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
        self._pack_codes: Final = library.core_quantized_pack_codes
        self._linear: Final = library.core_quantized_linear
        self._grouped = library.core_quantized_grouped

    def row_bytes(self, width: int) -> int:
        """Return the bytes of a row, including scales and zero points."""
        group_bytes = self.scales.itemsize + (0 if self.zeros is None else self.zeros.itemsize)
        return FACTOR_BYTES * self.has_factors + row_bytes(
            width, self.bits, self.group, group_bytes
        )

    def pack(self, weight: Tensor, rows: int, first: int, tensor: Tensor) -> None:
        """Round a plain [n, width], with any strides, into rows from `first` of a weight of `rows`
        rows.
        """
        self._fits(weight, tensor.shape[1])
        if self.zeros is not None or self.is_float or self.scales != torch.bfloat16:
            raise ValueError(
                "plain weights are rounded to integers without zero points and with scales in "
                "bfloat16"
            )
        if weight.is_meta:  # memory plan: no data
            return
        tensor = tensor if tensor.dtype in DTYPES else tensor.float()
        self._pack(
            weight.data_ptr(), tensor.data_ptr(), first, *tensor.shape, *tensor.stride(), rows,
            self._code, self.group, DTYPES[tensor.dtype],
        )  # fmt: skip

    def pack_codes(
        self,
        weight: Tensor,
        rows: int,
        first: int,
        codes: Tensor,
        scales: Tensor,
        zeros: Tensor | None = None,
        factors: Tensor | None = None,
    ) -> None:
        """Write int8 codes [n, width] with scales and zero points [n, groups] to rows from `first`.

        Four-bit codes are -8 to 7, or doubled floats of `FOUR_BIT_FLOATS`. A number is (code -
        zero) * scale, times the factor of its row, if any: n factors of any shape.
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
            expected = "none" if self.zeros is None else list(scales.shape)
            raise ValueError(f"zero points: got {found}; expected {expected}")
        if (factors is not None) != self.has_factors or (
            factors is not None and factors.numel() != count
        ):
            found = "none" if factors is None else list(factors.shape)
            raise ValueError(
                f"row factors: got {found}; expected {count if self.has_factors else 'none'}"
            )
        if weight.is_meta:
            return
        codes = codes.contiguous()
        scales = convert_scales(scales, self.scales).contiguous()
        zeros = None if zeros is None else zeros.to(self.zeros).contiguous()
        factors = None if factors is None else factors.float().contiguous()
        more = (None if each is None else each.data_ptr() for each in (zeros, factors))
        self._pack_codes(
            weight.data_ptr(), codes.data_ptr(), scales.data_ptr(), *more, first, count, width,
            codes.stride(0), rows, *self._facts,
        )  # fmt: skip

    def linear(self, x: Tensor, weight: Tensor, rows: int, order: Tensor | None = None) -> Tensor:
        """Return x @ weight.T, [..., rows].

        `order` int32, contiguous: index into x for each column of the weight.
        """
        flat = self._rows_of(x, weight)
        width = x.shape[-1]
        out = x.new_empty(*x.shape[:-1], rows)
        self._linear(
            out.data_ptr(), flat.data_ptr(), weight.data_ptr(),
            None if order is None else order.data_ptr(),
            flat.shape[0], rows, width, flat.stride(0), *self._call_arguments(x),
        )  # fmt: skip
        return out

    def _call_arguments(self, x: Tensor) -> tuple[int, ...]:
        return (*self._facts, 16 if x.dtype == torch.float32 else self.x_bits, DTYPES[x.dtype])


def convert_scales(scales: Tensor, kind: torch.dtype) -> Tensor:
    """Return scales as `kind`.

    Powers of two are exact, except that those below 2^-126, the smallest normal float32, become 0.
    """
    if kind != torch.float8_e8m0fnu:
        return scales.to(kind)
    return (scales.float().view(torch.int32) >> 23).to(torch.uint8)


def row_bytes(width: int, bits: int, group: int, group_bytes: int = 2) -> int:
    """Return the bytes of a row with `group_bytes` per group in addition to its codes."""
    return (
        group_bytes * -(-width // group) + -(-width // WIDTH_MULTIPLE) * WIDTH_MULTIPLE * bits // 8
    )
