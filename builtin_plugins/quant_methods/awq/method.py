"""AWQ checkpoints: weights [in, out], eight outputs per word, even ones before odd ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from builtin_plugins.quant_methods.common.excluded_modules import ExcludeListMethod
from builtin_plugins.quant_methods.common.module_names import NameList, read_transformers_name
from builtin_plugins.quant_methods.stored.config_fields import read_names
from builtin_plugins.quant_methods.stored.formats import StoredFormat, num_groups, shard_groups
from builtin_plugins.quant_methods.stored.layouts import GroupedInts, LayoutSpec
from builtin_plugins.quant_methods.stored.packing import to_signed, unpack_words
from core.api import ModelError
from core.model_spec.weight_shard import WeightShard


class Awq(ExcludeListMethod):
    """AWQ in its common version, GEMM."""

    name = "awq"
    example_config: Final = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 128,
        "version": "gemm",
        "zero_point": True,
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(
            config,
            NameList(
                read_names(config or {}, "modules_to_not_convert"),
                read_transformers_name,
                anywhere=True,
            ),
        )
        bits = config.get("bits", config.get("w_bit"))
        group = config.get("group_size", config.get("q_group_size"))
        version = str(config.get("version", "gemm")).lower()
        if (
            bits != BITS
            or version != "gemm"
            or not isinstance(group, int)
            or not (group == -1 or group > 0)
        ):
            raise ModelError(
                f"quantization_config: got {bits!r:.80} bits, group_size {group!r:.80}, version "
                f"{version!r:.80}; awq expects {BITS} bits, group_size -1 (a row) or more, and "
                "version gemm. Convert the checkpoint with AutoAWQ."
            )
        self._format = AwqFormat(group)


BITS: Final = 4
PER_WORD: Final = 8
ORDER: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Position in a word of each of eight outputs, packed in the order 0, 2, 4, 6, 1, 3, 5, 7."""


class AwqFormat(StoredFormat):
    """`group`: -1 is the whole row."""

    suffixes = ("qweight", "qzeros", "scales")

    def __init__(self, group: int) -> None:
        self._group = group
        self.layout_spec = LayoutSpec(BITS, group, has_zeros=True)
        self.bits_per_weight = BITS + (16 + BITS) / max(group, 32)

    def check(self, shard: WeightShard) -> None:
        """Reject group sizes that do not divide the inputs, and shards that cut a group."""
        if num_groups(shard, self._group) > 1:
            shard.columns(
                torch.empty(1, num_groups(shard, self._group), device="meta"), per=self._group
            )

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...] | None:
        """Return the shape of one of the tensors."""
        groups = num_groups(shard, self._group)
        words = -(-shard.out_features // PER_WORD)
        return {
            "qweight": (shard.in_features, words),
            "qzeros": (groups, words),
            "scales": (groups, shard.out_features),
        }[suffix]

    def unpack(self, tensors: Mapping[str, torch.Tensor], shard: WeightShard) -> GroupedInts:
        """Return this rank's shard."""
        codes, zeros = (
            to_signed(_outputs(tensors[name], shard).T, BITS) for name in ("qweight", "qzeros")
        )
        scales = shard_groups(shard.rows(tensors["scales"], 1).T, shard, self._group)
        return GroupedInts(
            shard.columns(codes), scales, shard_groups(zeros, shard, self._group).short()
        )


def _outputs(words: torch.Tensor, shard: WeightShard) -> torch.Tensor:
    """Return this rank's outputs of each row, in order.

    Only the words of those outputs are unpacked.
    """
    found = []
    for source, _ in shard.pieces:
        first = source.start // PER_WORD
        own = words[:, first : -(-source.stop // PER_WORD)]
        numbers = unpack_words(own, BITS, own.shape[1] * PER_WORD).view(*own.shape, PER_WORD)
        numbers = torch.stack([numbers[..., index] for index in ORDER], -1).flatten(-2)
        found.append(
            numbers[
                :, source.start - first * PER_WORD : source.stop - first * PER_WORD : source.step
            ]
        )
    return torch.cat(found, 1)
