"""Weights of eight-, six- and four-bit floats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch

from builtin_plugins.quant_methods.common.scales import Shared
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.layouts import Grouping, ScaledFloats
from builtin_plugins.quant_methods.stored.packing import (
    four_bit_floats,
    powers_of_two,
    six_bit_floats,
)
from core.api import ModelError, Part

EIGHT_BIT: Final = (torch.float8_e4m3fn, torch.float8_e5m2)
EXPONENTS: Final = (torch.uint8, torch.float8_e8m0fnu)


class FloatsFormat(StoredFormat):
    """Weights under one name, scales under another. `optional`: what a checkpoint may have for
    activations.

    `other`: a name that scales have as well. `in_powers`: scales are stored as exponents of two,
    and as nothing else.

    `x_bits`: what activations may be rounded to: 8 where the checkpoint was made for that. They are
    as they come, so what it says of their scales is not needed.
    """

    def __init__(
        self,
        shared: Shared,
        *,
        weight: str = "weight",
        scale: str = "weight_scale",
        other: str = "",
        optional: str = "",
        in_powers: bool = False,
        x_bits: int = 16,
    ) -> None:
        self._shared = shared
        self._weight = weight
        self._scale = scale
        self.suffixes: tuple[str, ...] = (weight, scale)
        self.optional_suffixes = tuple(optional.split())
        self.other_names = {other: scale} if other else {}
        self.grouping = Grouping(
            8, shared.columns or -1, is_float=True, has_powers=in_powers, x_bits=x_bits
        )
        self.stored_bits = 8 + (32 / shared.columns if shared.columns and shared.rows == 1 else 0)

    def check(self, part: Part) -> None:
        """Refuse blocks that ranks would cut."""
        self._shared.check(part)

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return the shape of the weight; scales come in several."""
        return (part.out_features, part.in_features) if suffix == self._weight else None

    def unpack(self, tensors: Mapping[str, torch.Tensor], part: Part) -> ScaledFloats:
        """Return the rank's part."""
        values = self.values(tensors[self._weight], part)
        scales = tensors[self._scale]
        scales = scales.view(torch.uint8) if scales.dtype in EXPONENTS else scales
        scales = self.scales(self._shared.of_rank(scales, part))
        return ScaledFloats(
            values, scales, self._shared.group(part), factors=self.factors(tensors, len(values))
        )

    def values(self, tensor: torch.Tensor, part: Part) -> torch.Tensor:
        """Return the rank's numbers."""
        if tensor.dtype not in EIGHT_BIT:
            raise ModelError(
                f"has a {self._weight} of {_name(tensor)}, which is none of eight-bit floats."
            )
        return part.columns(part.rows(tensor))

    def scales(self, own: torch.Tensor) -> torch.Tensor:
        """Return the rank's scales in float32."""
        if own.dtype in EXPONENTS:
            return powers_of_two(own)
        if self.grouping is not None and self.grouping.has_powers:
            raise ModelError(f"has a {self._scale} of {_name(own)}; they are exponents of a byte.")
        return own.float()

    def factors(self, tensors: Mapping[str, torch.Tensor], rows: int) -> torch.Tensor | None:
        """Return what multiplies the scales of so many rows, float32 [rows, 1]."""
        return None


class PackedFloatsFormat(FloatsFormat):
    """Two four-bit floats in a byte, or four six-bit ones in three; scales are exponents of two, or
    a second one belongs to the
    whole tensor.

    `whole`: its name. `divides`: scales are divided by it. `exponent_bits`: of six-bit floats, 2 or
    3.
    """

    def __init__(
        self,
        shared: Shared,
        *,
        bits: int = 4,
        exponent_bits: int = 2,
        weight: str = "weight_packed",
        scale: str = "weight_scale",
        whole: str = "",
        divides: bool = False,
        optional: str = "",
    ) -> None:
        super().__init__(shared, weight=weight, scale=scale, optional=optional)
        self._bits = bits
        self._exponent_bits = exponent_bits
        self._whole = whole
        self._divides = divides
        self.suffixes = (*self.suffixes, *([whole] if whole else []))
        self.grouping = Grouping(
            bits, shared.columns or -1, is_float=True, has_factors=bool(whole), has_powers=not whole
        )
        self.stored_bits = bits + 8 / (shared.columns or 32)

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return the shape of the bytes."""
        size = part.in_features * self._bits // 8
        return (part.out_features, size) if suffix == self._weight else None

    def values(self, tensor: torch.Tensor, part: Part) -> torch.Tensor:
        """Return the rank's numbers."""
        if tensor.dtype != torch.uint8:
            raise ModelError(f"has a {self._weight} of {_name(tensor)}; packed floats are bytes.")
        rows = part.rows(tensor)
        return part.columns(
            four_bit_floats(rows) if self._bits == 4 else six_bit_floats(rows, self._exponent_bits)
        )

    def scales(self, own: torch.Tensor) -> torch.Tensor:
        """Return the rank's scales in float32; those that a factor multiplies are floats of eight
        bits.
        """
        if self._whole and own.dtype != torch.float8_e4m3fn:
            raise ModelError(
                f"has a {self._scale} of {_name(own)}; beside a {self._whole} they are "
                "float8_e4m3fn."
            )
        return super().scales(own)

    def factors(self, tensors: Mapping[str, torch.Tensor], rows: int) -> torch.Tensor | None:
        """Return the tensor's own scale, for each row."""
        if not self._whole:
            return None
        whole = one_number(self._whole, tensors[self._whole])
        return (1 / whole if self._divides else whole).expand(rows, 1)


def one_number(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return the scale of a whole tensor, float32 of no dimension.

    Raises `ModelError` for several, or for none that can be one.
    """
    if tensor.numel() != 1:
        raise ModelError(f"has a {name} of shape {list(tensor.shape)}; it is one number.")
    found = float(tensor)
    if not math.isfinite(found) or found == 0:
        raise ModelError(f"has a {name} of {found}, which scales nothing. Download the file again.")
    return tensor.float().reshape(())


def _name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
