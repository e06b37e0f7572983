"""Weights on GPUs: torch multiplies plain ones, Triton kernels multiply quantized ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from core_kernels.triton.block_scaled import BlockScaledOps
from core_kernels.triton.int8_mm import ScaledIntOps
from core_kernels.triton.nvfp4 import NvFp4Ops
from core_kernels.triton.quantized import WHOLE_ROW, FloatOps, QuantizedOps
from core_kernels.triton.scaled_mm import ScaledFloatOps
from torch import nn

from builtin_plugins.quant_methods.cpu_packed import floats, ints
from builtin_plugins.quant_methods.stored.layouts import LayoutSpec, ScaledFloats
from core.model_spec.quant_method import ExpertsMethod, LinearMethod
from core.models.layers.experts import PlainExperts
from core.models.layers.linear import PlainLinear, PlainWeights

OfFloats = Callable[[torch.dtype, int], FloatOps]
MIN_BITS: Final = 4
"""Minimum bits per stored number; narrower numbers are widened."""


class TritonWeights(PlainWeights):
    """Linear layers, heads with their embeddings, and experts."""

    name = "triton"
    of_floats: OfFloats = FloatOps
    block_scaled = False
    """Whether the device multiplies blocks with scales."""

    def linear(self, prefix: str) -> LinearMethod:
        """Return a new linear method."""
        del prefix
        return TritonLinear(self.of_floats, block_scaled=self.block_scaled)

    def head(self, prefix: str) -> LinearMethod:
        """Return a new method, which embeds as well."""
        return self.linear(prefix)

    def experts(self, prefix: str) -> ExpertsMethod:
        """Return a new experts method."""
        del prefix
        return TritonExperts()


class Float8Weights(TritonWeights):
    """The same on a device that multiplies FP8."""

    name = "triton_float8"
    of_floats: OfFloats = ScaledFloatOps


class BlockScaledWeights(Float8Weights):
    """The same on a device that multiplies FP4 with a scale for each block."""

    name = "triton_block_scaled"
    block_scaled = True


class TritonLinear(PlainLinear):
    """A plain weight, with backends for quantized ones."""

    def __init__(self, of_floats: OfFloats, *, block_scaled: bool = False) -> None:
        self._of_floats = of_floats
        self._block_scaled = block_scaled

    def apply_with_bias(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T + bias, in one launch."""
        linear: Any = layer.ops.linear  # type: ignore[union-attr]
        return linear(x, layer.weight, layer.bias)  # type: ignore[no-any-return]

    def backend_for(self, spec: LayoutSpec) -> ints.PackedInts | floats.PackedFloats | None:
        """Return the backend of a layout; None: no kernel multiplies it."""
        if not spec.is_float:
            if spec.has_float_zeros:
                return None
            of_ints: Any = ScaledIntOps if _quantizes_inputs(spec) else _ints(spec)
            return ints.PackedInts(of_ints)
        of_blocks = _block_scaled_ops(spec) if self._block_scaled else None
        if of_blocks is not None:
            return floats.PackedFloats(of_blocks)
        make = _floats(spec, self._of_floats if spec.activation_bits <= 8 else FloatOps)
        return None if make is None else floats.PackedFloats(make)

    def rounding_ops(self, bits: int, group: int) -> QuantizedOps:
        """Return the kernels for weights rounded to `bits` on load."""
        return QuantizedOps(bits, group)


class TritonExperts(PlainExperts):
    """The same for experts."""

    def backend_for(
        self, spec: LayoutSpec
    ) -> ints.PackedIntExperts | floats.PackedFloatExperts | None:
        """Return the backend of a layout; None: no kernel multiplies it."""
        if not spec.is_float:
            if spec.has_g_idx or spec.has_float_zeros:
                return None
            return ints.PackedIntExperts(_ints(spec))
        make = _floats(spec, FloatOps)
        return None if make is None else floats.PackedFloatExperts(make)

    def rounding_ops(self, bits: int, group: int) -> QuantizedOps:
        """Return the kernels for weights rounded to `bits` on load."""
        return QuantizedOps(bits, group)


def _quantizes_inputs(spec: LayoutSpec) -> bool:
    """Return whether integer weights are multiplied by integer x: both with a scale per row."""
    is_plain = not (spec.has_zeros or spec.has_g_idx or spec.spans_rows)
    return is_plain and spec.activation_bits == spec.bits == 8 and spec.group_size <= 0


def _block_scaled_ops(spec: LayoutSpec) -> floats.MakeOps | None:
    """Return a factory of the kernels of weights and inputs in MXFP4 or NVFP4; None: in others."""
    is_plain = not (spec.has_zeros or spec.has_g_idx or spec.has_codebook or spec.spans_rows)
    if not is_plain or (spec.bits, spec.activation_bits) != (4, 4):
        return None
    if spec.has_e8m0_scales and spec.group_size == BlockScaledOps.group:
        return _of_any(BlockScaledOps)
    if spec.has_global_scales and spec.group_size == NvFp4Ops.group:
        return _of_any(NvFp4Ops)
    return None


def _of_any(kind: Callable[[], Any]) -> floats.MakeOps:
    def make(stored: ScaledFloats | None) -> Any:
        del stored  # all floats of the format have the same kernels
        return kind()

    return make


def _ints(spec: LayoutSpec) -> ints.MakeOps:
    bits = MIN_BITS if spec.bits <= MIN_BITS else 8
    make: Any = partial(QuantizedOps, bits, _group(spec), has_zeros=spec.has_zeros)
    return make  # type: ignore[no-any-return]


def _floats(spec: LayoutSpec, of_floats: OfFloats) -> floats.MakeOps | None:
    if spec.has_zeros or spec.has_g_idx or spec.has_codebook:
        return None
    return floats.make_float_ops(spec.bits, _group(spec), QuantizedOps, of_floats)


def _group(spec: LayoutSpec) -> int:
    return spec.group_size if spec.group_size > 0 else WHOLE_ROW
