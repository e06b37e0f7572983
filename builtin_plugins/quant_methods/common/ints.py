"""Formats of integers along the inputs: packed into words, or one per byte."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from builtin_plugins.quant_methods.common.scales import GroupShape
from builtin_plugins.quant_methods.stored.activations import ActivationScheme, kernel_bits
from builtin_plugins.quant_methods.stored.formats import StoredFormat, column_groups, unpack_outputs
from builtin_plugins.quant_methods.stored.layouts import GroupedInts, LayoutSpec
from builtin_plugins.quant_methods.stored.packing import WORD, to_signed, unpack_words
from core.api import ModelError
from core.model_spec.weight_shard import WeightShard
from core.models.dtypes import dtype_name


class IntsFormat(StoredFormat):
    """Signed integers, one per byte.

    `zero`: name of zero points of the same dtype; empty: there are none.

    `order`: name of the g_idx tensor. `activations`: how the checkpoint expects inputs rounded.
    """

    def __init__(
        self,
        bits: int,
        group_shape: GroupShape,
        *,
        weight: str = "weight",
        scale: str = "weight_scale",
        zero: str = "",
        order: str = "",
        optional: str = "",
        activations: ActivationScheme | None = None,
    ) -> None:
        self._bits = bits
        self._group_shape = group_shape
        self._weight = weight
        self._scale = scale
        self._zero = zero
        self._order = order
        self.suffixes = tuple(name for name in (weight, scale, zero, order) if name)
        self.optional_suffixes = tuple(optional.split())
        self.activations = activations
        zeros = bool(zero)
        ordered = bool(order)
        self.layout_spec = LayoutSpec(
            bits,
            group_shape.columns or -1,
            has_zeros=zeros,
            has_g_idx=ordered,
            activation_bits=kernel_bits(activations, "int8"),
        )
        self.bits_per_weight = 8 + 16 / (group_shape.columns or 1024)

    def check(self, shard: WeightShard) -> None:
        """Reject group sizes that do not divide the inputs, and shards that cut a group."""
        if self._group_shape.columns and shard.in_features % self._group_shape.columns:
            raise ModelError(
                f"has {shard.in_features} inputs; the quantization config expects a multiple of "
                f"group size {self._group_shape.columns}. Restore the original config."
            )
        if not self._order:
            self._group_shape.check(shard)

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...] | None:
        """Return the shape of the weight; scales have several valid shapes."""
        return (shard.out_features, shard.in_features) if suffix == self._weight else None

    def unpack(self, tensors: Mapping[str, torch.Tensor], shard: WeightShard) -> GroupedInts:
        """Return this rank's shard."""
        codes = shard.columns(self.codes(tensors[self._weight], shard))
        zeros = self.zeros(tensors[self._zero], shard) if self._zero else None
        if not self._order:
            scales = self.scales(self._group_shape.for_rank(tensors[self._scale], shard))
            return GroupedInts(
                codes,
                scales,
                None if zeros is None else self._group_shape.shard_columns(zeros, shard),
            )
        scales = shard.rows(tensors[self._scale])
        order = column_groups(tensors[self._order], shard, scales.shape[1])
        return GroupedInts(codes, scales, zeros, order)

    def codes(self, tensor: torch.Tensor, shard: WeightShard) -> torch.Tensor:
        """Return int8 [rows, in]."""
        if tensor.dtype != torch.int8:
            name = dtype_name(tensor.dtype)
            raise ModelError(
                f"has a {self._weight} of {name}; the quantization config expects int8."
            )
        return shard.rows(tensor)

    def scales(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the scales, of any floating dtype."""
        return tensor

    def zeros(self, tensor: torch.Tensor, shard: WeightShard) -> torch.Tensor:
        """Return int16 zero points of this rank's rows."""
        return self._group_shape.shard_rows(tensor, shard).short()


class PackedIntsFormat(IntsFormat):
    """Unsigned integers packed into int32 words, offset by half their range.

    Zero points are packed along the outputs.
    """

    def __init__(
        self,
        bits: int,
        group_shape: GroupShape,
        *,
        zero: str = "",
        order: str = "",
        optional: str = "",
        activations: ActivationScheme | None = None,
    ) -> None:
        super().__init__(
            bits,
            group_shape,
            weight="weight_packed",
            zero=zero,
            order=order,
            optional=optional,
            activations=activations,
        )
        self.bits_per_weight = bits + 16 / (group_shape.columns or 1024)

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...] | None:
        """Return the shape of the words."""
        words_in, words_out = (
            -(-size * self._bits // WORD) for size in (shard.in_features, shard.out_features)
        )
        return {
            self._weight: (shard.out_features, words_in),
            self._zero: (words_out, self._group_shape.num_scales(shard)[1]),
        }.get(suffix)

    def codes(self, tensor: torch.Tensor, shard: WeightShard) -> torch.Tensor:
        """Return int8 [rows, in]."""
        return to_signed(
            unpack_words(shard.rows(tensor), self._bits, shard.in_features), self._bits
        )

    def zeros(self, tensor: torch.Tensor, shard: WeightShard) -> torch.Tensor:
        """Return int16 zero points of this rank's rows."""
        return to_signed(unpack_outputs(tensor.T, self._bits, shard), self._bits).short().T
