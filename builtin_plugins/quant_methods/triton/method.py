"""Weights on GPUs: plain ones are torch's affair, numbers of few bits stay as they are stored and
are multiplied by Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from core_kernels.triton.quantized import WHOLE_ROW, FloatOps, QuantizedOps
from core_kernels.triton.scaled import ScaledFloatOps

from builtin_plugins.quant_methods.packed import floats, ints
from builtin_plugins.quant_methods.stored.layouts import Grouping
from core.api import ExpertsMethod, LinearMethod
from core.models.layers.experts import PlainExperts
from core.models.layers.linear import PlainLinear, PlainWeights

OfFloats = Callable[[torch.dtype, int], FloatOps]
FEWEST_BITS: Final = 4
"""Numbers of fewer bits are kept in as many."""


class TritonWeights(PlainWeights):
    """Every linear layer, every head with its embedding, and all experts."""

    name = "triton"
    of_floats: OfFloats = FloatOps

    def linear(self, prefix: str) -> LinearMethod:
        """Return a fresh method."""
        del prefix
        return KeepingLinear(self.of_floats)

    def head(self, prefix: str) -> LinearMethod:
        """Return a fresh method, which embeds as well."""
        return self.linear(prefix)

    def experts(self, prefix: str) -> ExpertsMethod:
        """Return a fresh method."""
        del prefix
        return KeepingExperts()


class Float8Weights(TritonWeights):
    """The same on a device that multiplies eight-bit floats."""

    name = "triton_float8"
    of_floats: OfFloats = ScaledFloatOps


class KeepingLinear(PlainLinear):
    """A plain weight, which also knows who keeps numbers as they are stored."""

    def __init__(self, of_floats: OfFloats) -> None:
        self._of_floats = of_floats

    def keeps(self, grouping: Grouping) -> ints.PackedInts | floats.PackedFloats | None:
        """Return a keeper of such numbers; None: no kernel multiplies by them."""
        if not grouping.is_float:
            return None if grouping.has_float_zeros else ints.PackedInts(_ints(grouping))
        make = _floats(grouping, self._of_floats if grouping.x_bits <= 8 else FloatOps)
        return None if make is None else floats.PackedFloats(make)

    def rounds(self, bits: int, group: int) -> QuantizedOps:
        """Return the kernels for weights that are rounded to so many bits while they load."""
        return QuantizedOps(bits, group)


class KeepingExperts(PlainExperts):
    """The same for experts."""

    def keeps(self, grouping: Grouping) -> ints.PackedIntExperts | floats.PackedFloatExperts | None:
        """Return a keeper of such numbers."""
        if not grouping.is_float:
            is_kept = not (grouping.is_ordered or grouping.has_float_zeros)
            return ints.PackedIntExperts(_ints(grouping)) if is_kept else None
        make = _floats(grouping, FloatOps)
        return None if make is None else floats.PackedFloatExperts(make)

    def rounds(self, bits: int, group: int) -> QuantizedOps:
        """Return the kernels for weights that are rounded to so many bits while they load."""
        return QuantizedOps(bits, group)


def _ints(grouping: Grouping) -> ints.Make:
    bits = FEWEST_BITS if grouping.bits <= FEWEST_BITS else 8
    make: Any = partial(QuantizedOps, bits, _group(grouping), has_zeros=grouping.has_zeros)
    return make  # type: ignore[no-any-return]


def _floats(grouping: Grouping, of_floats: OfFloats) -> floats.Make | None:
    if grouping.has_zeros or grouping.is_ordered or grouping.has_table:
        return None
    return floats.maker(grouping.bits, _group(grouping), QuantizedOps, of_floats)


def _group(grouping: Grouping) -> int:
    return grouping.group if grouping.group > 0 else WHOLE_ROW
