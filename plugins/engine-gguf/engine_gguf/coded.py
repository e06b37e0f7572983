"""Blocks of four-bit codes, as stored formats of the engine's: what they unpack to is kept in few
bits by the device.

A block has 32 codes, two in a byte: the lower four bits are those of its first half. MXFP4 has an
exponent before them, and is kept in four bits; IQ4_NL has a float16 scale, and codes stand for
integers that are no steps of equal size, so it is kept in eight.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn

from builtin_plugins.quant_methods.stored.experts import KeptExperts
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.keeping import PlainKeeper, Unaided, keeper_of
from builtin_plugins.quant_methods.stored.layouts import GroupedInts, Grouping, ScaledFloats
from builtin_plugins.quant_methods.stored.method import StoredMethod
from builtin_plugins.quant_methods.stored.packing import four_bit_floats, powers_of_two
from core.api import ModelError, Part
from engine_gguf.experts import by_expert

_INPUTS: Final = 32
_OF_EXPERT: Final = re.compile(r"(.+)\.\d+\.\w+")
_STEPS: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What IQ4_NL's codes stand for."""


class Codes(StoredFormat):
    """The only tensor of a weight is uint8 [out, in / 32, bytes of a block]."""

    suffixes = ("weight",)
    num_bytes = 0

    def blocks(self, tensors: Mapping[str, torch.Tensor], part: Part) -> torch.Tensor:
        """Return the rank's blocks. Raises `ModelError` for another shape."""
        tensor = tensors["weight"]
        wanted = part.out_features, part.in_features // _INPUTS, self.num_bytes
        if (
            tensor.dtype is not torch.uint8
            or tuple(tensor.shape) != wanted
            or part.in_features % _INPUTS
        ):
            raise ModelError(
                f"has the shape {list(tensor.shape)}; {list(wanted)} is expected by the settings "
                "of the file, or by the config "
                "given with --hf-config-path. Take another file."
            )
        return part.columns(part.rows(tensor), 1, _INPUTS)


class Mxfp4(Codes):
    """Four-bit floats whose scale is a power of two."""

    grouping = Grouping(4, _INPUTS, is_float=True, has_powers=True)
    num_bytes = 17
    stored_bits = 8 * num_bytes / _INPUTS

    def unpack(self, tensors: Mapping[str, torch.Tensor], part: Part) -> ScaledFloats:
        """Return the rank's part."""
        own = self.blocks(tensors, part)
        in_order = torch.cat((own[..., 1:] & 15, own[..., 1:] >> 4), -1)
        pairs = in_order[..., 0::2] | (in_order[..., 1::2] << 4)
        return ScaledFloats(four_bit_floats(pairs.flatten(1)), powers_of_two(own[..., 0]), _INPUTS)


class Iq4Nl(Codes):
    """Integers of a table."""

    grouping = Grouping(8, _INPUTS)
    num_bytes = 18
    stored_bits = 8 * num_bytes / _INPUTS

    def unpack(self, tensors: Mapping[str, torch.Tensor], part: Part) -> GroupedInts:
        """Return the rank's part."""
        own = self.blocks(tensors, part)
        codes = torch.cat((own[..., 2:] & 15, own[..., 2:] >> 4), -1).flatten(1)
        steps = torch.tensor(_STEPS, dtype=torch.int8).index_select(0, codes.flatten().int())
        return GroupedInts(
            steps.view(codes.shape), own[..., :2].contiguous().view(torch.float16).squeeze(-1)
        )


FORMATS: Final[Mapping[str, Codes]] = {"MXFP4": Mxfp4(), "IQ4_NL": Iq4Nl()}


class Coded(StoredMethod):
    """Gives layers this format, by the names of their weights."""

    name = "gguf"

    def __init__(self, facts: Any, prefixes: Mapping[str, str], experts: Mapping[str, str]) -> None:
        """Types by the names of weights, and of experts by the prefix that models ask by."""
        super().__init__(facts)
        self._prefixes = prefixes
        self._experts = experts

    def decide(self, prefix: str) -> StoredFormat | None:
        """Return that of a weight in such blocks."""
        found = _OF_EXPERT.fullmatch(prefix)
        kind = self._prefixes.get(prefix) or (self._experts.get(found[1]) if found else None)
        return FORMATS.get(kind or "")

    decide_head = decide_embedding = decide


class CodedExperts(KeptExperts):
    """The experts of a layer; their weights come one by one, or all in one tensor of blocks."""

    endings: tuple[str, ...] = ("",)

    def __init__(self, stored: Codes, unaided: Unaided) -> None:
        super().__init__()
        self._format = stored
        self._unaided = unaided

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return nothing: `load` looks."""
        del suffix, part
        return None

    def create(
        self, layer: nn.Module, num_experts: int, width: int, hidden: int, dtype: torch.dtype
    ) -> None:
        """Register parameters for all experts, by whoever keeps such numbers on the device."""
        whole = Part(pieces=(), columns_in=slice(0, hidden), out_features=width, in_features=hidden)
        self._keeper = keeper_of(self._format, self._plain, whole, [hidden, width])
        self._keeper.create(layer, num_experts, width, hidden, dtype)
        if isinstance(self._keeper, PlainKeeper):
            for _ in range(3 if layer.gated else 2):
                self._unaided.add(num_experts * width * hidden, self._format, dtype)

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Unpack one expert at a time, few rows at once."""
        if tensor.is_meta:  # of a model that is only planned
            return
        self._unaided.say()
        for own in by_expert(part) if part.num_experts else [part]:
            whole = tensor[own.expert] if part.num_experts else tensor
            for rows, layout in self._format.unpacked({suffix or "weight": whole}, own):
                self._keeper.put(layer, rows, layout, own.matrix, own.expert)
