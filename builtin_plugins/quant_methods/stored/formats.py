"""The description of a stored format: the tensors of one linear layer or expert.

Independent of configs and layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import torch

from builtin_plugins.quant_methods.stored.activations import ActivationScheme
from builtin_plugins.quant_methods.stored.layouts import Layout, LayoutSpec
from builtin_plugins.quant_methods.stored.packing import WORD, unpack_words
from core.api import ModelError

if TYPE_CHECKING:
    from core.model_spec.weight_shard import WeightShard


MAX_CHUNK_NUMBERS: Final = (1 << 15) - 1
"""Numbers unpacked at once.

Buffers this small are reused by the allocator, and torch processes them in one thread. More
threads would only wait for each other on cores that serve requests.
"""
MIN_CHUNK_ROWS: Final = 8
"""Minimum number of rows unpacked at once, whatever their length."""


class StoredFormat:
    """How one weight [out, in] is stored in tensors. Stateless: layers may share an instance.

    A subclass names its tensors, gives their shapes, and unpacks them to a canonical layout.
    """

    suffixes: tuple[str, ...] = ()
    """Suffixes of the required tensors of a layer."""
    optional_suffixes: tuple[str, ...] = ()
    """Suffixes of optional tensors, which do not affect the weights."""
    other_names: Mapping[str, str] = {}
    """Alternative suffixes of required tensors, with the suffix each stands for."""
    quantizes_on_load: bool = False
    """Whether the format quantizes a plain weight, its only tensor.

    Stacked experts then work, too.
    """
    layout_spec: LayoutSpec | None = None
    """Spec of the layout that it unpacks to; None for a layout of its own."""
    bits_per_weight: float = 8
    """Approximate stored bits per weight, scales included; used in log lines."""
    activations: ActivationScheme | None = None
    """How the checkpoint expects inputs to be rounded; its tensors are optional suffixes."""

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...] | None:
        """Return the required shape of the whole tensor; None if `unpack` checks it."""
        return None

    def check(self, shard: WeightShard) -> None:
        """Raise `ModelError` if this format cannot store or shard a weight of these sizes."""

    def check_optional(self, suffix: str, tensor: torch.Tensor, shard: WeightShard) -> None:
        """Raise `ModelError` for an optional tensor that contradicts the config."""

    def unpack(self, tensors: Mapping[str, torch.Tensor], shard: WeightShard) -> Layout:
        """Return this rank's shard of the weight, rows in the layer's order.

        `tensors` are whole, by suffix.

        A shard may be a few rows of a weight; time and memory must be proportional to it.
        """
        raise NotImplementedError

    def unpack_chunks(
        self, tensors: Mapping[str, torch.Tensor], shard: WeightShard
    ) -> Iterator[tuple[slice, Layout]]:
        """Yield (rows of the layer, their layout), a few rows at a time."""
        for own in shard.blocks(_chunk_rows(shard)):
            yield own.target, self.unpack(tensors, own)


def _chunk_rows(shard: WeightShard) -> int:
    return max(
        MIN_CHUNK_ROWS,
        MAX_CHUNK_NUMBERS // max(shard.in_features, 1) // MIN_CHUNK_ROWS * MIN_CHUNK_ROWS,
    )


def num_groups(shard: WeightShard, group: int) -> int:
    """Return the number of groups of a row.

    Raises `ModelError` if the group size does not divide it.
    """
    size = shard.in_features if group <= 0 else group
    if shard.in_features % size:
        raise ModelError(
            f"has {shard.in_features} inputs; the quantization config expects a multiple of group "
            f"size {size}. Restore the original config."
        )
    return shard.in_features // size


def column_groups(order: torch.Tensor, shard: WeightShard, groups: int) -> torch.Tensor:
    """Return int64 [columns]: the group of each of this rank's columns.

    Raises `ModelError` for an unknown group.
    """
    own = shard.columns(order, 0).long()
    wrong = own[(own < 0) | (own >= groups)]
    if len(wrong):
        raise ModelError(
            f"has columns of group {int(wrong[0])}; expected groups 0 to {groups - 1}."
        )
    return own


def unpack_outputs(words: torch.Tensor, bits: int, shard: WeightShard) -> torch.Tensor:
    """Return uint8 [..., rows]: this rank's outputs of int32 words packed along the last axis.

    Only the words of those outputs are unpacked.
    """
    words_each = bits // math.gcd(bits, WORD)
    each = WORD // math.gcd(bits, WORD)
    found = []
    for source, _ in shard.pieces:
        first = source.start // each
        last = -(-source.stop // each)
        count = min(last * each, shard.out_features) - first * each
        numbers = unpack_words(words[..., first * words_each : last * words_each], bits, count)
        found.append(
            numbers[..., source.start - first * each : source.stop - first * each : source.step]
        )
    return torch.cat(found, -1)


def shard_groups(tensor: torch.Tensor, shard: WeightShard, group: int) -> torch.Tensor:
    """Return this rank's columns of a tensor [out, groups]; a single group belongs to all ranks."""
    return tensor if tensor.shape[1] == 1 else shard.columns(tensor, per=group)
