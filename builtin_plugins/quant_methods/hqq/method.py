"""HQQ checkpoints: weights reshaped to groups and packed, with fractional zero points.

One setting for all layers, or one per layer type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from builtin_plugins.quant_methods.common.excluded_modules import ExcludeListMethod
from builtin_plugins.quant_methods.common.module_names import NameList, read_transformers_name
from builtin_plugins.quant_methods.common.scales import block_index, read_shard
from builtin_plugins.quant_methods.stored.config_fields import read_names, read_object, read_objects
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.layouts import (
    GroupedInts,
    Layout,
    LayoutSpec,
    ScaledFloats,
)
from builtin_plugins.quant_methods.stored.packing import to_signed
from core.api import ModelError
from core.model_spec.weight_shard import WeightShard
from core.models.dtypes import dtype_name

WEIGHTS: Final = "weight_quant_params"
NOT_READ: Final = ("scale_quant_params", "zero_quant_params")


class Hqq(ExcludeListMethod):
    """HQQ checkpoints as transformers saves them."""

    name = "hqq"
    example_config: Final = {
        "quant_method": "hqq",
        "quant_config": {WEIGHTS: {"nbits": 4, "group_size": 64, "axis": 1}},
        "skip_modules": ["lm_head"],
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(
            config,
            NameList(
                read_names(config or {}, "skip_modules"), read_transformers_name, anywhere=True
            ),
        )
        stated = read_object(config, "quant_config")
        self._all = _format(stated) if WEIGHTS in stated else None
        by_tag = {} if WEIGHTS in stated else read_objects(config, "quant_config")
        self._tags = {tag: _format(facts) for tag, facts in by_tag.items() if facts}
        # A tag is the part of a name after the layer's number, without an expert's number.
        self._kinds = NameList(self._tags, anywhere=True)
        if self._all is None and not self._tags:
            raise ModelError(
                f"quantization_config: quant_config: {WEIGHTS} is missing. Restore the original "
                "config."
            )

    def stored(self, prefix: str) -> StoredFormat | None:
        """Return the format of all layers, or of the layer's type."""
        tag = None if self._all else self._kinds.find(prefix)
        return self._all if tag is None else self._tags[tag]

    def choose_head_format(self, prefix: str) -> StoredFormat | None:
        """Return the head's format; the head is a linear layer to the tool."""
        return self.choose_format(prefix)


def _format(facts: Mapping[str, Any]) -> HqqFormat:
    weights = read_object(facts, WEIGHTS)
    bits = weights.get("nbits")
    group = weights.get("group_size")
    axis = weights.get("axis", 0)
    sized = group is None or (isinstance(group, int) and group > 0)
    if (
        not isinstance(bits, int)
        or bits not in PER_PACKED
        or not sized
        or axis not in (0, 1)
        or not weights.get("channel_wise", True)
    ):
        raise ModelError(
            f"quantization_config: got {bits!r:.80} bits with group_size {group!r:.80} along axis "
            f"{axis!r:.80}, channel_wise {weights.get('channel_wise', True)!r:.80}; hqq expects "
            f"{', '.join(map(str, sorted(PER_PACKED)))} bits and groups along axis 0 or 1."
        )
    second = [name for name in NOT_READ if facts.get(name)]
    if second:
        raise ModelError(
            f"quantization_config: {', '.join(second)}: quantized scales or zero points are not "
            "supported. Write the checkpoint again without them."
        )
    return HqqFormat(bits, group, axis)


PER_PACKED: Final = {8: 1, 4: 2, 3: 10, 2: 4, 1: 8}
"""By bits: integers per element (a byte, or an int32 word for three bits).

The first is in the highest bits.
"""
CONFIG_TENSORS: Final = ("nbits", "group_size", "axis")
"""Tensors that repeat the config."""
METADATA_TENSORS: Final = (
    "shape packing unpack_view_dtype view_as_float quant_scale quant_zero compute_dtype "
    "offload_meta encoded_state_dict "
    "stores_quant_config channel_wise optimize round_zero"
)


class HqqFormat(StoredFormat):
    """`group`: None is a row, or with `axis` 0 a column.

    `axis`: the axis of the groups in the reshaped weight.

    1: the weight is [groups, group], so adjacent numbers of a row share a scale. 0: it is [group,
    groups]; numbers of one column at a fixed row distance share a scale.
    """

    suffixes = ("W_q", "scale", "zero")
    optional_suffixes = (*CONFIG_TENSORS, *METADATA_TENSORS.split())

    def __init__(self, bits: int, group: int | None, axis: int) -> None:
        self._bits = bits
        self._group = group
        self._axis = axis
        if axis == 1:
            self.layout_spec = LayoutSpec(
                bits, group or -1, has_zeros=True, has_float_zeros=True, spans_rows=True
            )
        else:
            self.layout_spec = None
        self.bits_per_weight = bits + 32 / (group or 1024)

    def check(self, shard: WeightShard) -> None:
        """Reject group sizes that do not divide the weight, and shards that cut a group."""
        total = shard.out_features * shard.in_features
        group = self._size(shard)
        if total % group:
            raise ModelError(
                f"has {total} numbers; the quantization config expects a multiple of group size "
                f"{group}. Restore the original config."
            )
        if self._axis == 1 and group < shard.in_features and shard.in_features % group == 0:
            shard.columns(torch.empty(1, shard.in_features // group, device="meta"), per=group)

    def check_optional(self, suffix: str, tensor: torch.Tensor, shard: WeightShard) -> None:
        """Reject tensors that contradict the config."""
        expected = {"nbits": self._bits, "group_size": self._size(shard), "axis": self._axis}.get(
            suffix
        )
        if expected is not None and tensor.numel() == 1 and int(tensor) != expected:
            raise ModelError(
                f"is {int(tensor)}; the quantization config expects {expected}. Restore the "
                "original config."
            )

    def unpack(self, tensors: Mapping[str, torch.Tensor], shard: WeightShard) -> Layout:
        """Return this rank's shard: integers if groups are adjacent numbers, else floats."""
        size = self._size(shard)
        middle = 1 << (self._bits - 1)
        count = shard.out_features * shard.in_features // size
        lines, length = (count, size) if self._axis == 1 else (size, count)
        codes = to_signed(
            read_shard(shard, self._reader(tensors["W_q"], lines, length)), self._bits
        )
        scales, zeros = (self._of_groups(tensors, name, count) for name in ("scale", "zero"))
        if self._axis == 1:
            _, which = block_index(shard, size)
            return GroupedInts(codes, scales[which], zeros[which].float() - middle)
        _, index = block_index(shard, 1)
        group = index % count
        own = (codes.float() + middle - zeros[group].float()) * scales[group].float()
        return ScaledFloats(own, own.new_ones(len(own), 1), own.shape[1])

    def _size(self, shard: WeightShard) -> int:
        return self._group or (shard.in_features if self._axis == 1 else shard.out_features)

    def _reader(
        self, packed: torch.Tensor, lines: int, length: int
    ) -> Callable[[int, int], torch.Tensor]:
        """Return a function that reads a range of codes.

        The first part of the rows is in the highest bits of all elements.
        """
        per = PER_PACKED[self._bits]
        item = torch.int32 if self._bits == 3 else torch.uint8
        if packed.is_floating_point():  # bytes stored as floats, for tools that shard by dtype
            packed = packed.contiguous().view(item)
        rows = -(-lines // per)
        if packed.dtype != item or tuple(packed.shape) != (rows, length):
            raise ModelError(
                f"has a W_q of {dtype_name(packed.dtype)} {list(packed.shape)}; "
                f"expected {dtype_name(item)} [{rows}, {length}] for {self._bits} "
                f"bits in groups of {length if self._axis == 1 else lines}."
            )
        stored = packed.flatten()
        each = packed.numel()

        def read(first: int, last: int) -> torch.Tensor:
            parts = []
            for slot in range(first // each, -(-last // each)):
                own = stored[max(first - slot * each, 0) : last - slot * each]
                codes = own >> self._bits * (per - 1 - slot) & ((1 << self._bits) - 1)
                parts.append(codes.to(torch.uint8))
            return torch.cat(parts)

        return read

    @staticmethod
    def _of_groups(tensors: Mapping[str, torch.Tensor], name: str, count: int) -> torch.Tensor:
        if tensors[name].numel() != count:
            raise ModelError(
                f"has a {name} of shape {list(tensors[name].shape)}; expected {count} groups."
            )
        return tensors[name].reshape(-1)
