"""What a stored format is: facts about the tensors of one linear layer, or of one expert's.

Knows no config and no layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import torch

from builtin_plugins.quant_methods.stored.layouts import Grouping, Layout
from builtin_plugins.quant_methods.stored.packing import WORD, unpack_words
from core.errors import ModelError

if TYPE_CHECKING:
    from core.contracts.part import Part


UNPACKED: Final = (1 << 15) - 1
"""Numbers that are unpacked at once. Pieces of memory as small as these are used again, not left
between weights; and torch
does so much, and no number more, in one thread, where two would wait for each other on cores that
others use.
"""
LEAST_ROWS: Final = 8
"""Rows that are unpacked at once, however long they are."""


class StoredFormat:
    """How one weight [out, in] lies in tensors. Stateless: layers of one kind may share it.

    A subclass names its tensors, says their shapes, and unpacks them to a canonical layout.
    """

    suffixes: tuple[str, ...] = ()
    """Tensors behind a layer's prefix that a checkpoint must have."""
    optional_suffixes: tuple[str, ...] = ()
    """Tensors that it may have and that weights do not depend on."""
    other_names: Mapping[str, str] = {}
    """Other suffixes by which checkpoints name required tensors, and which those are."""
    reads_plain: bool = False
    """It rounds the plain weight, its only tensor, so experts' may come all in one tensor as well.
    """
    grouping: Grouping | None = None
    """Facts of the integers or floats that it unpacks to; None: it unpacks to something else."""
    stored_bits: float = 8
    """Of a number with its share of scales, about; for what is said in the log."""

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return what the whole tensor must have; None: `unpack` looks at it by itself."""
        return None

    def check(self, part: Part) -> None:
        """Raise `ModelError` where a weight of these sizes cannot be stored so, or not cut so."""

    def check_optional(self, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Raise `ModelError` for an optional tensor that says something else than the config."""

    def unpack(self, tensors: Mapping[str, torch.Tensor], part: Part) -> Layout:
        """Return the rank's part of the weight, rows in the layer's order. `tensors` are whole, by
        suffix.

        Parts are few rows of a weight: one must cost its share of the whole's time and memory.
        """
        raise NotImplementedError

    def unpacked(
        self, tensors: Mapping[str, torch.Tensor], part: Part
    ) -> Iterator[tuple[slice, Layout]]:
        """Yield rows of the layer and what belongs there, few at a time."""
        for own in part.blocks(_rows_at_once(part)):
            yield own.target, self.unpack(tensors, own)


def _rows_at_once(part: Part) -> int:
    return max(LEAST_ROWS, UNPACKED // max(part.in_features, 1) // LEAST_ROWS * LEAST_ROWS)


def groups_of(part: Part, group: int) -> int:
    """Return how many groups a row has. Raises `ModelError` where they do not divide it."""
    size = part.in_features if group <= 0 else group
    if part.in_features % size:
        raise ModelError(
            f"has {part.in_features} inputs, which do not divide into groups of {size} as its "
            "quantization config says; "
            "restore the config from where the model came."
        )
    return part.in_features // size


def groups_of_columns(order: torch.Tensor, part: Part, groups: int) -> torch.Tensor:
    """Return int64 [columns]: the group of each of the rank's.

    Raises `ModelError` where there is no such group.
    """
    own = part.columns(order, 0).long()
    wrong = own[(own < 0) | (own >= groups)]
    if len(wrong):
        raise ModelError(
            f"has columns of group {int(wrong[0])}; there are groups 0 to {groups - 1}."
        )
    return own


def outputs_of(words: torch.Tensor, bits: int, part: Part) -> torch.Tensor:
    """Return uint8 [..., rows]: the rank's outputs of int32 words along the last axis, of which
    only those are unpacked.
    """
    words_each = bits // math.gcd(bits, WORD)
    each = WORD // math.gcd(bits, WORD)
    found = []
    for source, _ in part.pieces:
        first = source.start // each
        last = -(-source.stop // each)
        count = min(last * each, part.out_features) - first * each
        numbers = unpack_words(words[..., first * words_each : last * words_each], bits, count)
        found.append(
            numbers[..., source.start - first * each : source.stop - first * each : source.step]
        )
    return torch.cat(found, -1)


def cut_groups(tensor: torch.Tensor, part: Part, group: int) -> torch.Tensor:
    """Return the rank's columns of a tensor [out, groups]; a single group is everybody's."""
    return tensor if tensor.shape[1] == 1 else part.columns(tensor, per=group)
