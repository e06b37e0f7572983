"""How FP-Quant lays out a weight: four-bit floats with scales of groups, of inputs that a small
matrix rotates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch

from builtin_plugins.quant_methods.common.floats import one_number
from builtin_plugins.quant_methods.stored.formats import StoredFormat, groups_of
from builtin_plugins.quant_methods.stored.layouts import ScaledFloats
from builtin_plugins.quant_methods.stored.packing import four_bit_floats, powers_of_two
from core.api import ModelError, Part

GROUPS: Final = {"mxfp4": 32, "nvfp4": 16}
"""Inputs that share a scale, which is an exponent (E8M0) of the first, a float of eight bits of the
second.
"""
ROTATION: Final = "forward_hadamard_matrix"
WHOLE: Final = "weight_global_scale"


@dataclass(frozen=True, slots=True)
class RotatedFloats:
    """Floats of rotated inputs: x @ weight.T is (x @ rotation) @ floats.T, group by group."""

    floats: ScaledFloats
    rotation: torch.Tensor
    """Float32 [size, size]; so many neighbouring inputs are rotated together."""

    @property
    def shape(self) -> tuple[int, int]:
        """Output rows and input columns."""
        return self.floats.shape

    def rows(self, own: slice) -> RotatedFloats:
        """Return some of the rows."""
        return replace(self, floats=self.floats.rows(own))

    def plain(self) -> torch.Tensor:
        """Return the weight of inputs as they are, in float32."""
        rows, width = self.shape
        return (self.floats.plain().view(rows, -1, len(self.rotation)) @ self.rotation.T).view(
            rows, width
        )


class RotatedFormat(StoredFormat):
    """`kind`: of `GROUPS`. `size`: how many neighbouring inputs are rotated together.

    What activations were to be rounded to is not needed: they are not rounded.
    """

    suffixes = ("qweight", "scales", WHOLE, ROTATION)
    optional_suffixes = ("act_global_scale", "backward_hadamard_matrix", "weight", "dqweight")

    def __init__(self, kind: str, size: int) -> None:
        self._kind = kind
        self._group = GROUPS[kind]
        self._size = size
        self.stored_bits = 4 + 8 / self._group

    def check(self, part: Part) -> None:
        """Refuse rotations and groups that do not divide the inputs, or that ranks would cut."""
        together = math.lcm(self._group, self._size)
        part.columns(torch.empty(1, groups_of(part, together), device="meta"), per=together)

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return the shape of one of the tensors; the scale of the whole comes in several."""
        return {
            "qweight": (part.out_features, part.in_features // 2),
            "scales": (part.out_features, part.in_features // self._group),
            ROTATION: (self._size, self._size),
        }.get(suffix)

    def check_optional(self, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Refuse numbers that would stand beside those of four bits."""
        if suffix in ("weight", "dqweight") and tensor.numel():
            raise ModelError(
                "has plain numbers beside those of four bits; save the model without its master "
                "weights."
            )

    def unpack(self, tensors: Mapping[str, torch.Tensor], part: Part) -> RotatedFloats:
        """Return the rank's part."""
        codes, scales, rotation = (tensors[name] for name in ("qweight", "scales", ROTATION))
        if (
            codes.dtype.itemsize != 1
            or scales.dtype.itemsize != 1
            or not rotation.is_floating_point()
        ):
            names = ", ".join(
                str(tensor.dtype).removeprefix("torch.") for tensor in (codes, scales, rotation)
            )
            raise ModelError(
                f"holds {names}; they are bytes of numbers, bytes of scales, and a floating-point "
                "rotation."
            )
        values = part.columns(four_bit_floats(part.rows(codes).contiguous().view(torch.uint8)))
        scales = part.columns(part.rows(scales), per=self._group).contiguous().view(torch.uint8)
        scales = (
            powers_of_two(scales)
            if self._kind == "mxfp4"
            else scales.view(torch.float8_e4m3fn).float()
        )
        factors = (1 / one_number(WHOLE, tensors[WHOLE])).expand(len(values), 1)
        return RotatedFloats(
            ScaledFloats(values, scales, self._group, factors=factors), rotation.float()
        )
