"""How GPTQ lays out a weight: integers packed along the inputs, which lie on the first axis; zero
points along the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from builtin_plugins.quant_methods.stored.formats import (
    StoredFormat,
    cut_groups,
    groups_of,
    groups_of_columns,
    outputs_of,
)
from builtin_plugins.quant_methods.stored.layouts import GroupedInts, Grouping
from builtin_plugins.quant_methods.stored.packing import WORD, centred, unpack_words
from core.api import ModelError, Part

BITS = (2, 3, 4, 8)


class GptqFormat(StoredFormat):
    """`group`: -1 is the whole row.

    `is_ordered`: columns name their groups. `stored_less`: what zero points are stored less by.
    """

    grouping: Grouping

    def __init__(
        self, bits: int, group: int, *, is_symmetric: bool, is_ordered: bool, stored_less: int
    ) -> None:
        self._bits = bits
        self._group = group
        self._stored_less = stored_less
        self.suffixes = ("qweight", "qzeros", "scales", *(["g_idx"] if is_ordered else []))
        self.optional_suffixes = () if is_ordered else ("g_idx",)
        self.grouping = Grouping(bits, group, has_zeros=not is_symmetric, is_ordered=is_ordered)
        self.stored_bits = bits + (16 + bits) / max(group, 32)

    def check(self, part: Part) -> None:
        """Refuse groups that do not divide the inputs, or that ranks would cut."""
        if groups_of(part, self._group) > 1 and not self.grouping.is_ordered:
            part.columns(
                torch.empty(1, groups_of(part, self._group), device="meta"), per=self._group
            )

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return the shape of one of the tensors."""
        groups = groups_of(part, self._group)
        out = part.out_features
        words_in, words_out = (-(-size * self._bits // WORD) for size in (part.in_features, out))
        return {
            "qweight": (words_in, out),
            "qzeros": (groups, words_out),
            "scales": (groups, out),
            "g_idx": (part.in_features,),
        }[suffix]

    def check_optional(self, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Refuse an order where the config says that there is none."""
        size = part.in_features if self._group <= 0 else self._group
        if not torch.equal(tensor.long(), torch.arange(part.in_features) // size):
            raise ModelError(
                "gives input columns an order, and the quantization config says desc_act=false; "
                "set it to true, with "
                "--hf-overrides or in config.json."
            )

    def unpack(self, tensors: Mapping[str, torch.Tensor], part: Part) -> GroupedInts:
        """Return the rank's part."""
        codes = unpack_words(
            part.rows(tensors["qweight"], 1).T.contiguous(), self._bits, part.in_features
        )
        codes = centred(part.columns(codes), self._bits)
        zeros = outputs_of(tensors["qzeros"], self._bits, part).short().T + (
            self._stored_less - (1 << (self._bits - 1))
        )
        scales = part.rows(tensors["scales"], 1).T
        if not self.grouping.has_zeros and bool(zeros.any()):
            raise ModelError(
                "has zero points other than the middle, and the quantization config says sym=true; "
                "set it to false, with "
                "--hf-overrides or in config.json."
            )
        if not self.grouping.is_ordered:
            scales, zeros = (cut_groups(tensor, part, self._group) for tensor in (scales, zeros))
            return GroupedInts(codes, scales, zeros if self.grouping.has_zeros else None)
        order = groups_of_columns(tensors["g_idx"], part, scales.shape[1])
        return GroupedInts(codes, scales, zeros if self.grouping.has_zeros else None, order)
