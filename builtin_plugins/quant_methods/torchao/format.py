"""torchao's tensor types in a safetensors file: components are stored under the weight's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from builtin_plugins.quant_methods.common.floats import E8M0_DTYPES, FP8_DTYPES, scalar_scale
from builtin_plugins.quant_methods.common.ints import IntsFormat
from builtin_plugins.quant_methods.stored.activations import ActivationScheme
from builtin_plugins.quant_methods.stored.formats import StoredFormat, num_groups, shard_groups
from builtin_plugins.quant_methods.stored.layouts import GroupedInts, LayoutSpec, ScaledFloats
from builtin_plugins.quant_methods.stored.packing import (
    e8m0_to_float,
    unpack_bytes,
    unpack_fp4,
)
from core.api import ModelError
from core.model_spec.weight_shard import WeightShard
from core.models.dtypes import dtype_name

CODES: Final = "_weight_qdata"
SCALES: Final = "_weight_scale"
ZEROS: Final = "_weight_zero_point"
TENSOR_SCALE: Final = "_weight_per_tensor_scale"
BLOCK_ROWS: Final = 128
BLOCK_COLUMNS: Final = 4
"""Rows and groups of one swizzled block of scales."""


class SymmetricIntsFormat(IntsFormat):
    """Integers with stored zero points that must all be 0."""

    def check_optional(self, suffix: str, tensor: torch.Tensor, shard: WeightShard) -> None:
        """Reject zero points that contradict the config."""
        if suffix == ZEROS and bool(tensor.any()):
            raise ModelError(
                "has zero points, but the quantization config has none. Restore the original "
                "config."
            )


class PackedInt4Format(StoredFormat):
    """Signed four-bit integers, two per byte, the first in the lower half.

    The value of code 0 is stored per group.
    """

    suffixes = (CODES, SCALES, ZEROS)

    def __init__(self, group: int, activations: ActivationScheme | None = None) -> None:
        self._group = group
        self.activations = activations
        self.layout_spec = LayoutSpec(4, group, has_zeros=True, has_float_zeros=True)
        self.bits_per_weight = 4 + 32 / group

    def check(self, shard: WeightShard) -> None:
        """Reject group sizes that do not divide the inputs, and shards that cut a group."""
        if num_groups(shard, self._group) > 1:
            shard.columns(
                torch.empty(1, num_groups(shard, self._group), device="meta"), per=self._group
            )

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...] | None:
        """Return the shape of one of the tensors."""
        groups = num_groups(shard, self._group)
        if suffix == CODES:
            return (shard.out_features, shard.in_features // 2)
        return (groups, shard.out_features)

    def unpack(self, tensors: Mapping[str, torch.Tensor], shard: WeightShard) -> GroupedInts:
        """Return this rank's shard."""
        codes = unpack_bytes(shard.rows(tensors[CODES]).contiguous().view(torch.uint8), 4)
        codes = (codes ^ 8).view(torch.int8) - 8
        scales, middles = (
            shard_groups(shard.rows(tensors[name], 1).T, shard, self._group).float()
            for name in (SCALES, ZEROS)
        )
        zeros = -middles / torch.where(scales == 0, 1, scales)
        return GroupedInts(shard.columns(codes), scales, zeros)


class SwizzledFloatsFormat(StoredFormat):
    """Eight- or four-bit floats with group scales, row-major or swizzled for a GPU kernel.

    `is_scaled`: a second-level scale multiplies the scales. `e8m0_scales`: scales are exponents of
    two.
    """

    def __init__(
        self,
        group: int,
        *,
        is_packed: bool,
        is_scaled: bool = False,
        e8m0_scales: bool = False,
        activations: ActivationScheme | None = None,
    ) -> None:
        self._group = group
        self.activations = activations
        self._is_packed = is_packed
        self._e8m0_scales = e8m0_scales
        self.suffixes = (CODES, SCALES, *([TENSOR_SCALE] if is_scaled else []))
        bits = 4 if is_packed else 8
        self.layout_spec = LayoutSpec(
            bits, group, is_float=True, has_global_scales=is_scaled, has_e8m0_scales=e8m0_scales
        )
        self.bits_per_weight = bits + 8 / group

    def check(self, shard: WeightShard) -> None:
        """Reject group sizes that do not divide the inputs, and shards that cut a group."""
        shard.columns(
            torch.empty(1, num_groups(shard, self._group), device="meta"), per=self._group
        )

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...] | None:
        """Return the shape of the numbers; scales have two valid shapes."""
        if suffix == CODES:
            return (shard.out_features, shard.in_features // (1 + self._is_packed))
        return None

    def unpack(self, tensors: Mapping[str, torch.Tensor], shard: WeightShard) -> ScaledFloats:
        """Return this rank's shard."""
        stored = tensors[CODES]
        if not (self._is_packed or stored.dtype in FP8_DTYPES):
            raise ModelError(f"has numbers of {dtype_name(stored.dtype)}; expected an FP8 dtype.")
        values = shard.rows(stored)
        values = unpack_fp4(values.contiguous().view(torch.uint8)) if self._is_packed else values
        scales = unswizzle(tensors[SCALES], shard, num_groups(shard, self._group))
        if self._e8m0_scales != (scales.dtype in E8M0_DTYPES):
            expected = "exponents of a byte" if self._e8m0_scales else "floats"
            raise ModelError(f"has scales of {dtype_name(scales.dtype)}; expected {expected}.")
        scales = e8m0_to_float(scales) if self._e8m0_scales else scales.float()
        global_scales = None
        if TENSOR_SCALE in tensors:
            global_scales = scalar_scale(TENSOR_SCALE, tensors[TENSOR_SCALE]).expand(len(values), 1)
        scales = shard_groups(scales, shard, self._group)
        return ScaledFloats(shard.columns(values), scales, self._group, global_scales=global_scales)


def unswizzle(scales: torch.Tensor, shard: WeightShard, groups: int) -> torch.Tensor:
    """Return this rank's scales [rows, groups] from row-major or swizzled scales."""
    rows = shard.out_features
    if tuple(scales.shape) == (rows, groups):
        return shard.rows(scales)
    down = -(-rows // BLOCK_ROWS)
    across = -(-groups // BLOCK_COLUMNS)
    if scales.dtype.itemsize != 1 or scales.numel() != down * BLOCK_ROWS * across * BLOCK_COLUMNS:
        raise ModelError(f"has scales of shape {list(scales.shape)}; expected [{rows}, {groups}].")
    lines = BLOCK_ROWS // BLOCK_COLUMNS  # torch cannot permute every one-byte dtype
    blocks = (
        scales.contiguous()
        .view(torch.uint8)
        .view(down, across, lines, BLOCK_COLUMNS, BLOCK_COLUMNS)
    )
    found = []
    for source, _ in shard.pieces:
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
