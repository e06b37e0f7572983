"""Sparse weights: the numbers that are not zero, and a bit mask of their positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import torch

from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.layouts import Layout, ScaledFloats
from builtin_plugins.quant_methods.stored.packing import unpack_bytes
from core.api import ModelError
from core.model_spec.weight_shard import WeightShard

FORMATS: Final = ("sparse-24-bitmask", "sparse-bitmask")
"""Names of `sparsity_config.format` that are read."""
VALUES: Final = "compressed"
MASK: Final = "bitmask"
WEIGHT: Final = "weight"
BYTE: Final = 8


class PlainFormat(StoredFormat):
    """An unquantized weight, as the inner format of a sparse one."""

    suffixes = (WEIGHT,)
    bits_per_weight = 16

    def unpack(self, tensors: Mapping[str, torch.Tensor], shard: WeightShard) -> ScaledFloats:
        """Return this rank's shard."""
        own = shard.columns(shard.rows(tensors[WEIGHT]))
        return ScaledFloats(own, torch.ones(len(own), 1), own.shape[1])


class SparseFormat(StoredFormat):
    """A weight of `dense` format, of which only the numbers that are not zero are stored.

    It is expanded while it loads, one weight at a time, and multiplied as a dense one.
    """

    def __init__(self, dense: StoredFormat | None) -> None:
        self._dense = dense or PlainFormat()
        others = tuple(name for name in self._dense.suffixes if name != WEIGHT)
        self.suffixes = (VALUES, MASK, *others)
        self.optional_suffixes = (*self._dense.optional_suffixes, "shape", "row_offsets")
        self.other_names = self._dense.other_names
        self.layout_spec = self._dense.layout_spec
        self.activations = self._dense.activations
        self.bits_per_weight = 1 + self._dense.bits_per_weight / 2

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...] | None:
        """Return the shape of the mask or of a tensor of the dense format."""
        if suffix == MASK:
            return (shard.out_features, -(-shard.in_features // BYTE))
        return None if suffix == VALUES else self._dense.shape(suffix, shard)

    def check(self, shard: WeightShard) -> None:
        """Check what the dense format does."""
        self._dense.check(shard)

    def check_optional(self, suffix: str, tensor: torch.Tensor, shard: WeightShard) -> None:
        """Reject another shape than the layer's."""
        if suffix == "shape" and tensor.tolist() != [shard.out_features, shard.in_features]:
            raise ModelError(
                f"has a sparse weight of shape {tensor.tolist()}; expected "
                f"{[shard.out_features, shard.in_features]}."
            )

    def unpack(self, tensors: Mapping[str, torch.Tensor], shard: WeightShard) -> Layout:
        """Return this rank's shard."""
        return self._dense.unpack(_expanded(tensors, shard), shard)

    def unpack_chunks(
        self, tensors: Mapping[str, torch.Tensor], shard: WeightShard
    ) -> Iterator[tuple[slice, Layout]]:
        """Yield (rows of the layer, their layout), of a weight that is expanded once."""
        return self._dense.unpack_chunks(_expanded(tensors, shard), shard)


def _expanded(tensors: Mapping[str, torch.Tensor], shard: WeightShard) -> dict[str, torch.Tensor]:
    """Return the tensors of the dense format."""
    values = tensors[VALUES]
    mask = unpack_bytes(tensors[MASK].view(torch.uint8), 1)[:, : shard.in_features].bool()
    if int(mask.sum()) != values.numel():
        raise ModelError(
            f"has {values.numel()} numbers; expected {int(mask.sum())}, one per bit of its mask. "
            "Download the file again."
        )
    # torch cannot index every one-byte dtype
    plain = values.view(torch.uint8) if values.dtype.itemsize == 1 else values
    weight = plain.new_zeros(mask.shape)
    weight[mask] = plain.flatten()
    dense = {name: tensor for name, tensor in tensors.items() if name not in (VALUES, MASK)}
    return {**dense, WEIGHT: weight.view(values.dtype)}
