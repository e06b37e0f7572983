"""Blocks of four-bit codes as stored formats, which the device's backends multiply.

A block has 32 codes, two per byte: the lower four bits are codes of its first half. MXFP4 has an
exponent before them, and is stored in four bits. IQ4_NL has a float16 scale and a codebook of
integers, and is stored in eight.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn

from builtin_plugins.quant_methods.api import (
    BackendExperts,
    DequantizedBackend,
    DequantizedFallback,
    GroupedInts,
    LayoutSpec,
    ScaledFloats,
    StoredFormat,
    StoredMethod,
    e8m0_to_float,
    select_backend,
    unpack_fp4,
)
from core.api import ModelError
from core.model_spec.weight_shard import WeightShard
from engine_gguf.experts import split_experts

_INPUTS: Final = 32
_OF_EXPERT: Final = re.compile(r"(.+)\.\d+\.\w+")
_STEPS: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""IQ4_NL's codebook."""


class BlockFormat(StoredFormat):
    """The only tensor of a weight is uint8 [out, in / 32, bytes of a block]."""

    suffixes = ("weight",)
    num_bytes = 0

    def blocks(self, tensors: Mapping[str, torch.Tensor], shard: WeightShard) -> torch.Tensor:
        """Return this rank's blocks. Raises `ModelError` for another shape."""
        tensor = tensors["weight"]
        expected = shard.out_features, shard.in_features // _INPUTS, self.num_bytes
        if (
            tensor.dtype is not torch.uint8
            or tuple(tensor.shape) != expected
            or shard.in_features % _INPUTS
        ):
            raise ModelError(
                f"got shape {list(tensor.shape)}; the settings of the file, or the config of "
                f"--hf-config-path, expect {list(expected)}. Use another file."
            )
        return shard.columns(shard.rows(tensor), 1, _INPUTS)


class Mxfp4(BlockFormat):
    """Four-bit floats with a power-of-two scale."""

    layout_spec = LayoutSpec(4, _INPUTS, is_float=True, has_e8m0_scales=True)
    num_bytes = 17
    bits_per_weight = 8 * num_bytes / _INPUTS

    def unpack(self, tensors: Mapping[str, torch.Tensor], shard: WeightShard) -> ScaledFloats:
        """Return this rank's shard."""
        own = self.blocks(tensors, shard)
        in_order = torch.cat((own[..., 1:] & 15, own[..., 1:] >> 4), -1)
        pairs = in_order[..., 0::2] | (in_order[..., 1::2] << 4)
        return ScaledFloats(unpack_fp4(pairs.flatten(1)), e8m0_to_float(own[..., 0]), _INPUTS)


class Iq4Nl(BlockFormat):
    """Four-bit indices into a codebook of integers."""

    layout_spec = LayoutSpec(8, _INPUTS)
    num_bytes = 18
    bits_per_weight = 8 * num_bytes / _INPUTS

    def unpack(self, tensors: Mapping[str, torch.Tensor], shard: WeightShard) -> GroupedInts:
        """Return this rank's shard."""
        own = self.blocks(tensors, shard)
        codes = torch.cat((own[..., 2:] & 15, own[..., 2:] >> 4), -1).flatten(1)
        steps = torch.tensor(_STEPS, dtype=torch.int8).index_select(0, codes.flatten().int())
        return GroupedInts(
            steps.view(codes.shape), own[..., :2].contiguous().view(torch.float16).squeeze(-1)
        )


FORMATS: Final[Mapping[str, BlockFormat]] = {"MXFP4": Mxfp4(), "IQ4_NL": Iq4Nl()}


class BlockFormatMethod(StoredMethod):
    """Gives layers the format of their weight's blocks, by name."""

    name = "gguf"

    def __init__(self, facts: Any, prefixes: Mapping[str, str], experts: Mapping[str, str]) -> None:
        """Block types by weight name, and of experts by the prefix that models request."""
        super().__init__(facts)
        self._prefixes = prefixes
        self._experts = experts

    def choose_format(self, prefix: str) -> StoredFormat | None:
        """Return the format of a weight in such blocks."""
        found = _OF_EXPERT.fullmatch(prefix)
        kind = self._prefixes.get(prefix) or (self._experts.get(found[1]) if found else None)
        return FORMATS.get(kind or "")

    choose_head_format = choose_embedding_format = choose_format


class BlockFormatExperts(BackendExperts):
    """The experts of a layer; weights arrive one by one, or stacked in one tensor."""

    stacked_suffixes: tuple[str, ...] = ("",)

    def __init__(self, stored: BlockFormat, fallback: DequantizedFallback) -> None:
        super().__init__()
        self._format = stored
        self._fallback = fallback

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...] | None:
        """Return None: `load` checks the shape."""
        del suffix, shard
        return None

    def create(
        self, layer: nn.Module, num_experts: int, width: int, hidden: int, dtype: torch.dtype
    ) -> None:
        """Register parameters for all experts on the device's backend."""
        whole = WeightShard(
            pieces=(), columns_in=slice(0, hidden), out_features=width, in_features=hidden
        )
        self._backend = select_backend(self._format, self._plain, whole, [hidden, width])
        self._backend.create(layer, num_experts, width, hidden, dtype)
        if isinstance(self._backend, DequantizedBackend):
            for _ in range(3 if layer.gated else 2):
                self._fallback.add(num_experts * width * hidden, self._format, dtype)

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, shard: WeightShard) -> None:
        """Unpack one expert at a time, a few rows at once."""
        if tensor.is_meta:  # a planned model
            return
        self._fallback.log_once()
        for own in split_experts(shard) if shard.num_experts else [shard]:
            whole = tensor[own.expert] if shard.num_experts else tensor
            for rows, layout in self._format.unpack_chunks({suffix or "weight": whole}, own):
                self._backend.write_rows(layer, rows, layout, own.matrix, own.expert)
