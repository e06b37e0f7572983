"""How torchao's tensor types lie in a safetensors file: each of their tensors by itself, under the
name of the weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from builtin_plugins.quant_methods.common.floats import EIGHT_BIT, EXPONENTS, one_number
from builtin_plugins.quant_methods.common.ints import IntsFormat
from builtin_plugins.quant_methods.stored.formats import StoredFormat, cut_groups, groups_of
from builtin_plugins.quant_methods.stored.layouts import GroupedInts, Grouping, ScaledFloats
from builtin_plugins.quant_methods.stored.packing import (
    four_bit_floats,
    powers_of_two,
    unpack_bytes,
)
from core.api import ModelError, Part

CODES: Final = "_weight_qdata"
SCALES: Final = "_weight_scale"
ZEROS: Final = "_weight_zero_point"
WHOLE_SCALE: Final = "_weight_per_tensor_scale"
BLOCK_ROWS: Final = 128
BLOCK_COLUMNS: Final = 4
"""Scales of so many rows and groups lie together in the order of a GPU's kernel."""


class SymmetricInts(IntsFormat):
    """Integers whose zero points are stored, and are all 0."""

    def check_optional(self, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Refuse zero points that the config does not speak of."""
        if suffix == ZEROS and bool(tensor.any()):
            raise ModelError(
                "has zero points, and the quantization config says that there are none; restore "
                "the config."
            )


class NibblesFormat(StoredFormat):
    """Signed integers of four bits, two in a byte, the first in the lower half; what a zero stands
    for is stored beside them.
    """

    suffixes = (CODES, SCALES, ZEROS)

    def __init__(self, group: int) -> None:
        self._group = group
        self.grouping = Grouping(4, group, has_zeros=True, has_float_zeros=True)
        self.stored_bits = 4 + 32 / group

    def check(self, part: Part) -> None:
        """Refuse groups that do not divide the inputs, or that ranks would cut."""
        if groups_of(part, self._group) > 1:
            part.columns(
                torch.empty(1, groups_of(part, self._group), device="meta"), per=self._group
            )

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return the shape of one of the tensors."""
        groups = groups_of(part, self._group)
        return (
            (part.out_features, part.in_features // 2)
            if suffix == CODES
            else (groups, part.out_features)
        )

    def unpack(self, tensors: Mapping[str, torch.Tensor], part: Part) -> GroupedInts:
        """Return the rank's part."""
        codes = unpack_bytes(part.rows(tensors[CODES]).contiguous().view(torch.uint8), 4)
        codes = (codes ^ 8).view(torch.int8) - 8
        scales, middles = (
            cut_groups(part.rows(tensors[name], 1).T, part, self._group).float()
            for name in (SCALES, ZEROS)
        )
        zeros = -middles / torch.where(scales == 0, 1, scales)
        return GroupedInts(part.columns(codes), scales, zeros)


class SwizzledFloats(StoredFormat):
    """Floats of eight or four bits with a scale for each group, in rows or in the order of a GPU's
    kernel.

    `is_scaled`: the scales have one of their own. `in_powers`: they are exponents of two.
    """

    def __init__(
        self, group: int, *, is_packed: bool, is_scaled: bool = False, in_powers: bool = False
    ) -> None:
        self._group = group
        self._is_packed = is_packed
        self._in_powers = in_powers
        self.suffixes = (CODES, SCALES, *([WHOLE_SCALE] if is_scaled else []))
        bits = 4 if is_packed else 8
        self.grouping = Grouping(
            bits, group, is_float=True, has_factors=is_scaled, has_powers=in_powers
        )
        self.stored_bits = bits + 8 / group

    def check(self, part: Part) -> None:
        """Refuse groups that do not divide the inputs, or that ranks would cut."""
        part.columns(torch.empty(1, groups_of(part, self._group), device="meta"), per=self._group)

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return the shape of the numbers; scales come in two."""
        return (
            (part.out_features, part.in_features // (1 + self._is_packed))
            if suffix == CODES
            else None
        )

    def unpack(self, tensors: Mapping[str, torch.Tensor], part: Part) -> ScaledFloats:
        """Return the rank's part."""
        stored = tensors[CODES]
        if not (self._is_packed or stored.dtype in EIGHT_BIT):
            raise ModelError(
                f"has numbers of {str(stored.dtype).removeprefix('torch.')}; they are eight-bit "
                "floats."
            )
        values = part.rows(stored)
        values = (
            four_bit_floats(values.contiguous().view(torch.uint8)) if self._is_packed else values
        )
        scales = in_rows(tensors[SCALES], part, groups_of(part, self._group))
        if self._in_powers != (scales.dtype in EXPONENTS):
            wanted = "exponents of a byte" if self._in_powers else "floats"
            raise ModelError(
                f"has scales of {str(scales.dtype).removeprefix('torch.')}; they are {wanted}."
            )
        scales = powers_of_two(scales) if self._in_powers else scales.float()
        factors = None
        if WHOLE_SCALE in tensors:
            factors = one_number(WHOLE_SCALE, tensors[WHOLE_SCALE]).expand(len(values), 1)
        scales = cut_groups(scales, part, self._group)
        return ScaledFloats(part.columns(values), scales, self._group, factors=factors)


def in_rows(scales: torch.Tensor, part: Part, groups: int) -> torch.Tensor:
    """Return the rank's [rows, groups] of scales that are so, or in the order of a GPU's kernel,
    filled up to whole blocks.
    """
    rows = part.out_features
    if tuple(scales.shape) == (rows, groups):
        return part.rows(scales)
    down = -(-rows // BLOCK_ROWS)
    across = -(-groups // BLOCK_COLUMNS)
    if scales.dtype.itemsize != 1 or scales.numel() != down * BLOCK_ROWS * across * BLOCK_COLUMNS:
        raise ModelError(
            f"has scales of shape {list(scales.shape)}; [{rows}, {groups}] are needed."
        )
    lines = (
        BLOCK_ROWS // BLOCK_COLUMNS
    )  # torch moves bytes in any order, and not every type of a byte
    blocks = (
        scales.contiguous()
        .view(torch.uint8)
        .view(down, across, lines, BLOCK_COLUMNS, BLOCK_COLUMNS)
    )
    found = []
    for source, _ in part.pieces:
        first = source.start // BLOCK_ROWS
        own = (
            blocks[first : -(-source.stop // BLOCK_ROWS)]
            .permute(0, 3, 2, 1, 4)
            .flatten(0, 2)
            .flatten(1)
        )
        found.append(
            own[
                source.start - first * BLOCK_ROWS : source.stop - first * BLOCK_ROWS : source.step,
                :groups,
            ]
        )
    return torch.cat(found).view(scales.dtype)
