"""Formats of eight-, six- and four-bit floats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch

from builtin_plugins.quant_methods.common.scales import GroupShape
from builtin_plugins.quant_methods.stored.activations import ActivationScheme, kernel_bits
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.layouts import LayoutSpec, ScaledFloats
from builtin_plugins.quant_methods.stored.packing import (
    e8m0_to_float,
    unpack_fp4,
    unpack_fp6,
)
from core.api import ModelError
from core.model_spec.weight_shard import WeightShard
from core.models.dtypes import dtype_name

FP8_DTYPES: Final = (torch.float8_e4m3fn, torch.float8_e5m2)
E8M0_DTYPES: Final = (torch.uint8, torch.float8_e8m0fnu)


class FloatsFormat(StoredFormat):
    """A weight tensor and a scale tensor.

    `other`: alternative name of the scales. `optional`: names of activation tensors.
    `e8m0_scales`: scales must be exponents of two. `activations`: how the checkpoint expects inputs
    rounded.
    """

    def __init__(
        self,
        group_shape: GroupShape,
        *,
        weight: str = "weight",
        scale: str = "weight_scale",
        other: str = "",
        optional: str = "",
        e8m0_scales: bool = False,
        activations: ActivationScheme | None = None,
    ) -> None:
        self._group_shape = group_shape
        self._weight = weight
        self._scale = scale
        self.suffixes: tuple[str, ...] = (weight, scale)
        self.optional_suffixes = tuple(optional.split())
        self.activations = activations
        self.other_names = {other: scale} if other else {}
        self.layout_spec = LayoutSpec(
            8,
            group_shape.columns or -1,
            is_float=True,
            has_e8m0_scales=e8m0_scales,
            activation_bits=kernel_bits(activations, "fp8_e4m3"),
        )
        self.bits_per_weight = 8 + (
            32 / group_shape.columns if group_shape.columns and group_shape.rows == 1 else 0
        )

    def check(self, shard: WeightShard) -> None:
        """Reject shards that cut a block."""
        self._group_shape.check(shard)

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...] | None:
        """Return the shape of the weight; scales have several valid shapes."""
        return (shard.out_features, shard.in_features) if suffix == self._weight else None

    def unpack(self, tensors: Mapping[str, torch.Tensor], shard: WeightShard) -> ScaledFloats:
        """Return this rank's shard."""
        values = self.values(tensors[self._weight], shard)
        scales = tensors[self._scale]
        scales = scales.view(torch.uint8) if scales.dtype in E8M0_DTYPES else scales
        scales = self.scales(self._group_shape.for_rank(scales, shard))
        return ScaledFloats(
            values,
            scales,
            self._group_shape.group_size(shard),
            global_scales=self.global_scales(tensors, len(values)),
        )

    def values(self, tensor: torch.Tensor, shard: WeightShard) -> torch.Tensor:
        """Return this rank's values."""
        if tensor.dtype not in FP8_DTYPES:
            raise ModelError(
                f"has a {self._weight} of {dtype_name(tensor.dtype)}; expected an FP8 dtype."
            )
        return shard.columns(shard.rows(tensor))

    def scales(self, own: torch.Tensor) -> torch.Tensor:
        """Return this rank's scales in float32."""
        if own.dtype in E8M0_DTYPES:
            return e8m0_to_float(own)
        if self.layout_spec is not None and self.layout_spec.has_e8m0_scales:
            raise ModelError(
                f"has a {self._scale} of {dtype_name(own.dtype)}; expected eight-bit "
                "exponents (E8M0)."
            )
        return own.float()

    def global_scales(self, tensors: Mapping[str, torch.Tensor], rows: int) -> torch.Tensor | None:
        """Return the second-level scale of each row, float32 [rows, 1]."""
        return None


class PackedFloatsFormat(FloatsFormat):
    """Two FP4 numbers per byte, or four six-bit ones in three bytes.

    Scales are exponents of two, unless `global_scale` names a second-level scale of the tensor.
    `divides_scales`: scales are divided by it. `exponent_bits`: of six-bit floats, 2 or 3.
    """

    def __init__(
        self,
        group_shape: GroupShape,
        *,
        bits: int = 4,
        exponent_bits: int = 2,
        weight: str = "weight_packed",
        scale: str = "weight_scale",
        global_scale: str = "",
        divides_scales: bool = False,
        optional: str = "",
        activations: ActivationScheme | None = None,
    ) -> None:
        super().__init__(
            group_shape, weight=weight, scale=scale, optional=optional, activations=activations
        )
        self._bits = bits
        self._exponent_bits = exponent_bits
        self._global_scale = global_scale
        self._divides_scales = divides_scales
        self.suffixes = (*self.suffixes, *([global_scale] if global_scale else []))
        self.layout_spec = LayoutSpec(
            bits,
            group_shape.columns or -1,
            is_float=True,
            has_global_scales=bool(global_scale),
            has_e8m0_scales=not global_scale,
            activation_bits=kernel_bits(activations, "fp4"),
        )
        self.bits_per_weight = bits + 8 / (group_shape.columns or 32)

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...] | None:
        """Return the shape of the packed bytes."""
        size = shard.in_features * self._bits // 8
        return (shard.out_features, size) if suffix == self._weight else None

    def values(self, tensor: torch.Tensor, shard: WeightShard) -> torch.Tensor:
        """Return this rank's values."""
        if tensor.dtype != torch.uint8:
            raise ModelError(f"has a {self._weight} of {dtype_name(tensor.dtype)}; expected uint8.")
        rows = shard.rows(tensor)
        return shard.columns(
            unpack_fp4(rows) if self._bits == 4 else unpack_fp6(rows, self._exponent_bits)
        )

    def scales(self, own: torch.Tensor) -> torch.Tensor:
        """Return this rank's scales in float32; with a global scale they must be float8_e4m3fn."""
        if self._global_scale and own.dtype != torch.float8_e4m3fn:
            raise ModelError(
                f"has a {self._scale} of {dtype_name(own.dtype)}; expected float8_e4m3fn with "
                f"{self._global_scale}."
            )
        return super().scales(own)

    def global_scales(self, tensors: Mapping[str, torch.Tensor], rows: int) -> torch.Tensor | None:
        """Return the tensor's scale, for each row."""
        if not self._global_scale:
            return None
        scale = scalar_scale(self._global_scale, tensors[self._global_scale])
        return (1 / scale if self._divides_scales else scale).expand(rows, 1)


def scalar_scale(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return the scale of a whole tensor as a float32 scalar.

    Raises `ModelError` for several numbers, or an unusable one.
    """
    if tensor.numel() != 1:
        raise ModelError(f"has a {name} of shape {list(tensor.shape)}; expected one number.")
    found = float(tensor)
    if not math.isfinite(found) or found == 0:
        raise ModelError(
            f"has a {name} of {found}; expected a finite number other than 0. Download the file "
            "again."
        )
    return tensor.float().reshape(())
