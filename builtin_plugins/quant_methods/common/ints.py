"""Weights of integers along the inputs: packed into words, or one in each byte."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from builtin_plugins.quant_methods.common.scales import Shared
from builtin_plugins.quant_methods.stored.formats import StoredFormat, groups_of_columns, outputs_of
from builtin_plugins.quant_methods.stored.layouts import GroupedInts, Grouping
from builtin_plugins.quant_methods.stored.packing import WORD, centred, unpack_words
from core.api import ModelError, Part


class IntsFormat(StoredFormat):
    """Signed integers, a byte each. `zero`: the name of zero points of the same type; empty: there
    are none.

    `x_bits`: what activations may be rounded to, with one scale for a token's: 8 where the
    checkpoint was made for that.
    """

    def __init__(
        self,
        bits: int,
        shared: Shared,
        *,
        weight: str = "weight",
        scale: str = "weight_scale",
        zero: str = "",
        order: str = "",
        optional: str = "",
        x_bits: int = 16,
    ) -> None:
        self._bits = bits
        self._shared = shared
        self._weight = weight
        self._scale = scale
        self._zero = zero
        self._order = order
        self.suffixes = tuple(name for name in (weight, scale, zero, order) if name)
        self.optional_suffixes = tuple(optional.split())
        zeros = bool(zero)
        ordered = bool(order)
        self.grouping = Grouping(
            bits, shared.columns or -1, has_zeros=zeros, is_ordered=ordered, x_bits=x_bits
        )
        self.stored_bits = 8 + 16 / (shared.columns or 1024)

    def check(self, part: Part) -> None:
        """Refuse groups that do not divide the inputs, or that ranks would cut."""
        if self._shared.columns and part.in_features % self._shared.columns:
            raise ModelError(
                f"has {part.in_features} inputs, which do not divide into groups of "
                f"{self._shared.columns} as its "
                "quantization config says; restore the config from where the model came."
            )
        if not self._order:
            self._shared.check(part)

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return the shape of the weight; scales come in several."""
        return (part.out_features, part.in_features) if suffix == self._weight else None

    def unpack(self, tensors: Mapping[str, torch.Tensor], part: Part) -> GroupedInts:
        """Return the rank's part."""
        codes = part.columns(self.codes(tensors[self._weight], part))
        zeros = self.zeros(tensors[self._zero], part) if self._zero else None
        if not self._order:
            scales = self.scales(self._shared.of_rank(tensors[self._scale], part))
            return GroupedInts(
                codes, scales, None if zeros is None else self._shared.columns_of(zeros, part)
            )
        scales = part.rows(tensors[self._scale])
        order = groups_of_columns(tensors[self._order], part, scales.shape[1])
        return GroupedInts(codes, scales, zeros, order)

    def codes(self, tensor: torch.Tensor, part: Part) -> torch.Tensor:
        """Return int8 [rows, in]."""
        if tensor.dtype != torch.int8:
            name = str(tensor.dtype).removeprefix("torch.")
            raise ModelError(f"has a {self._weight} of {name}; the quantization config says int8.")
        return part.rows(tensor)

    def scales(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the scales, of any floating type."""
        return tensor

    def zeros(self, tensor: torch.Tensor, part: Part) -> torch.Tensor:
        """Return int16 zero points of the rank's rows."""
        return self._shared.rows_of(tensor, part).short()


class PackedIntsFormat(IntsFormat):
    """Integers packed into words of int32 with their middle added; zero points are packed along the
    outputs.
    """

    def __init__(
        self, bits: int, shared: Shared, *, zero: str = "", order: str = "", optional: str = ""
    ) -> None:
        super().__init__(
            bits, shared, weight="weight_packed", zero=zero, order=order, optional=optional
        )
        self.stored_bits = bits + 16 / (shared.columns or 1024)

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return the shape of the words."""
        words_in, words_out = (
            -(-size * self._bits // WORD) for size in (part.in_features, part.out_features)
        )
        return {
            self._weight: (part.out_features, words_in),
            self._zero: (words_out, self._shared.counts(part)[1]),
        }.get(suffix)

    def codes(self, tensor: torch.Tensor, part: Part) -> torch.Tensor:
        """Return int8 [rows, in]."""
        return centred(unpack_words(part.rows(tensor), self._bits, part.in_features), self._bits)

    def zeros(self, tensor: torch.Tensor, part: Part) -> torch.Tensor:
        """Return int16 zero points of the rank's rows."""
        return centred(outputs_of(tensor.T, self._bits, part), self._bits).short().T
