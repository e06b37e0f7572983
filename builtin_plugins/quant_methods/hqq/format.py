"""How HQQ lays out a weight: reshaped to groups, packed along the first axis, with zero points that
are no integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch

from builtin_plugins.quant_methods.common.flat import blocks_of, numbers_of
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.layouts import GroupedInts, Grouping, Layout, ScaledFloats
from builtin_plugins.quant_methods.stored.packing import centred
from core.api import ModelError, Part

PER_PACKED: Final = {8: 1, 4: 2, 3: 10, 2: 4, 1: 8}
"""By bits: integers in one element, a byte or, of three bits, a word of int32.

The first is in the highest bits.
"""
STATED: Final = ("nbits", "group_size", "axis")
"""Tensors that repeat what the config says."""
BESIDE: Final = (
    "shape packing unpack_view_dtype view_as_float quant_scale quant_zero compute_dtype "
    "offload_meta encoded_state_dict "
    "stores_quant_config channel_wise optimize round_zero"
)


class HqqFormat(StoredFormat):
    """`group`: None is a row, or of `axis` 0 a column. `axis`: along which of a reshaped weight's
    the groups lie.

    1: the weight is [groups, group], so that neighbours in a row share a scale. 0: it is [group,
    groups], and numbers of one column that lie a fixed number of rows apart do.
    """

    suffixes = ("W_q", "scale", "zero")
    optional_suffixes = (*STATED, *BESIDE.split())

    def __init__(self, bits: int, group: int | None, axis: int) -> None:
        self._bits = bits
        self._group = group
        self._axis = axis
        self.grouping = (
            Grouping(bits, group or -1, has_zeros=True, has_float_zeros=True, runs_on=True)
            if axis == 1
            else None
        )
        self.stored_bits = bits + 32 / (group or 1024)

    def check(self, part: Part) -> None:
        """Refuse groups that the weight does not divide into, or that ranks would cut."""
        total = part.out_features * part.in_features
        group = self._size(part)
        if total % group:
            raise ModelError(
                f"has {total} numbers, which do not divide into groups of {group} as its "
                "quantization config says; restore "
                "the config from where the model came."
            )
        if self._axis == 1 and group < part.in_features and part.in_features % group == 0:
            part.columns(torch.empty(1, part.in_features // group, device="meta"), per=group)

    def check_optional(self, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Refuse what contradicts the config."""
        said = {"nbits": self._bits, "group_size": self._size(part), "axis": self._axis}.get(suffix)
        if said is not None and tensor.numel() == 1 and int(tensor) != said:
            raise ModelError(
                f"is {int(tensor)}, and the quantization config says {said}; restore it."
            )

    def unpack(self, tensors: Mapping[str, torch.Tensor], part: Part) -> Layout:
        """Return the rank's part: integers, where groups are neighbours, else floats."""
        size = self._size(part)
        middle = 1 << (self._bits - 1)
        count = part.out_features * part.in_features // size
        lines, length = (count, size) if self._axis == 1 else (size, count)
        codes = centred(numbers_of(part, self._reader(tensors["W_q"], lines, length)), self._bits)
        scales, zeros = (self._of_groups(tensors, name, count) for name in ("scale", "zero"))
        if self._axis == 1:
            _, which = blocks_of(part, size)
            return GroupedInts(codes, scales[which], zeros[which].float() - middle)
        _, place = blocks_of(part, 1)
        own = (codes.float() + middle - zeros[place % count].float()) * scales[
            place % count
        ].float()
        return ScaledFloats(own, own.new_ones(len(own), 1), own.shape[1])

    def _size(self, part: Part) -> int:
        return self._group or (part.in_features if self._axis == 1 else part.out_features)

    def _reader(
        self, packed: torch.Tensor, lines: int, length: int
    ) -> Callable[[int, int], torch.Tensor]:
        """Return what reads uint8 from one place to another: the first part of the lines is in the
        highest bits of all elements.
        """
        per = PER_PACKED[self._bits]
        item = torch.int32 if self._bits == 3 else torch.uint8
        if (
            packed.is_floating_point()
        ):  # bytes that were named floats, for tools that share out weights by type
            packed = packed.contiguous().view(item)
        kept = -(-lines // per)
        if packed.dtype != item or tuple(packed.shape) != (kept, length):
            raise ModelError(
                f"has a W_q of {str(packed.dtype).removeprefix('torch.')} {list(packed.shape)}; "
                f"{self._bits} bits in groups of "
                f"{length if self._axis == 1 else lines} make {str(item).removeprefix('torch.')} "
                f"[{kept}, {length}]."
            )
        stored = packed.flatten()
        each = packed.numel()

        def read(first: int, last: int) -> torch.Tensor:
            parts = []
            for place in range(first // each, -(-last // each)):
                own = stored[max(first - place * each, 0) : last - place * each]
                parts.append(
                    (own >> self._bits * (per - 1 - place) & ((1 << self._bits) - 1)).to(
                        torch.uint8
                    )
                )
            return torch.cat(parts)

        return read

    @staticmethod
    def _of_groups(tensors: Mapping[str, torch.Tensor], name: str, count: int) -> torch.Tensor:
        if tensors[name].numel() != count:
            raise ModelError(
                f"has a {name} of shape {list(tensors[name].shape)}; there are {count} groups."
            )
        return tensors[name].reshape(-1)
