"""How AWQ lays out a weight: [in, out], eight outputs in a word, the even ones before the odd ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from builtin_plugins.quant_methods.stored.formats import StoredFormat, cut_groups, groups_of
from builtin_plugins.quant_methods.stored.layouts import GroupedInts, Grouping
from builtin_plugins.quant_methods.stored.packing import centred, unpack_words
from core.api import Part

BITS: Final = 4
PER_WORD: Final = 8
ORDER: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word each of eight outputs is, when they are packed in the order 0, 2, 4, 6, 1, 3, 5,
7.
"""


class AwqFormat(StoredFormat):
    """`group`: -1 is the whole row."""

    suffixes = ("qweight", "qzeros", "scales")

    def __init__(self, group: int) -> None:
        self._group = group
        self.grouping = Grouping(BITS, group, has_zeros=True)
        self.stored_bits = BITS + (16 + BITS) / max(group, 32)

    def check(self, part: Part) -> None:
        """Refuse groups that do not divide the inputs, or that ranks would cut."""
        if groups_of(part, self._group) > 1:
            part.columns(
                torch.empty(1, groups_of(part, self._group), device="meta"), per=self._group
            )

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return the shape of one of the tensors."""
        groups = groups_of(part, self._group)
        words = -(-part.out_features // PER_WORD)
        return {
            "qweight": (part.in_features, words),
            "qzeros": (groups, words),
            "scales": (groups, part.out_features),
        }[suffix]

    def unpack(self, tensors: Mapping[str, torch.Tensor], part: Part) -> GroupedInts:
        """Return the rank's part."""
        codes, zeros = (
            centred(_outputs(tensors[name], part).T, BITS) for name in ("qweight", "qzeros")
        )
        scales = cut_groups(part.rows(tensors["scales"], 1).T, part, self._group)
        return GroupedInts(
            part.columns(codes), scales, cut_groups(zeros, part, self._group).short()
        )


def _outputs(words: torch.Tensor, part: Part) -> torch.Tensor:
    """Return the rank's numbers of each row in the order of the outputs; only words that hold them
    are unpacked.
    """
    found = []
    for source, _ in part.pieces:
        first = source.start // PER_WORD
        own = words[:, first : -(-source.stop // PER_WORD)]
        numbers = unpack_words(own, BITS, own.shape[1] * PER_WORD).view(*own.shape, PER_WORD)
        numbers = torch.stack([numbers[..., place] for place in ORDER], -1).flatten(-2)
        found.append(
            numbers[
                :, source.start - first * PER_WORD : source.stop - first * PER_WORD : source.step
            ]
        )
    return torch.cat(found, 1)
