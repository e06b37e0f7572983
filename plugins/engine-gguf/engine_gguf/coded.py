"""Blocks of four-bit codes, as a stored format of the engine's: what they unpack to is kept in four bits by the device.

MXFP4: an exponent, and 32 codes, two in a byte: the lower four bits are those of the block's first half.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import nn

from core.api import ModelError, Part
from core.quantization.formats import StoredFormat
from core.quantization.keeping import PlainKeeper, Unaided, keeper_of
from core.quantization.layouts import Grouping, ScaledFloats
from core.quantization.method import StoredMethod
from core.quantization.packing import four_bit_floats, powers_of_two
from engine_gguf.experts import by_expert

_INPUTS: Final = 32
_BYTES: Final = 17
_OF_EXPERT: Final = re.compile(r"(.+)\.\d+\.\w+")


class Mxfp4(StoredFormat):
    """The only tensor of a weight is uint8 [out, in / 32, 17]."""

    suffixes = ("weight",)
    grouping = Grouping(4, _INPUTS, is_float=True)
    stored_bits = 8 * _BYTES / _INPUTS

    def unpack(self, tensors: Mapping[str, torch.Tensor], part: Part) -> ScaledFloats:
        """Return the rank's part. Raises `ModelError` for another shape."""
        tensor = tensors["weight"]
        wanted = part.out_features, part.in_features // _INPUTS, _BYTES
        if tensor.dtype is not torch.uint8 or tuple(tensor.shape) != wanted or part.in_features % _INPUTS:
            raise ModelError(
                f"has the shape {list(tensor.shape)}; {list(wanted)} is expected by the settings of the file, or by the config "
                "given with --hf-config-path. Take another file."
            )
        own = part.columns(part.rows(tensor), 1, _INPUTS)
        low, high = own[..., 1:] & 15, own[..., 1:] >> 4
        in_order = torch.cat((low, high), -1)
        pairs = in_order[..., 0::2] | (in_order[..., 1::2] << 4)
        return ScaledFloats(four_bit_floats(pairs.flatten(1)), powers_of_two(own[..., 0]), _INPUTS)


_FORMAT: Final = Mxfp4()


class Coded(StoredMethod):
    """Gives layers this format, by the names of their weights."""

    name = "gguf"

    def __init__(self, facts: Any, prefixes: frozenset[str], experts: frozenset[str]) -> None:
        super().__init__(facts)
        self._prefixes, self._experts = prefixes, experts

    def decide(self, prefix: str) -> StoredFormat | None:
        """Return it for a weight in such blocks."""
        found = _OF_EXPERT.fullmatch(prefix)
        return _FORMAT if prefix in self._prefixes or (found and found[1] in self._experts) else None

    decide_head = decide_embedding = decide


class CodedExperts:
    """The experts of a layer; their weights come one by one, or all in one tensor of blocks."""

    suffixes: tuple[str, ...] = ("weight",)
    endings: tuple[str, ...] = ("",)

    def __init__(self, unaided: Unaided) -> None:
        self._unaided = unaided
        self._keeper: Any = None

    def onto(self, plain: Callable[[], Any]) -> None:
        """Take what makes the device's method for plain experts."""
        self._plain = plain

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return nothing: `load` looks."""
        del suffix, part
        return None

    def create(self, layer: nn.Module, num_experts: int, width: int, hidden: int, dtype: torch.dtype) -> None:
        """Register parameters for all experts, by whoever keeps such numbers on the device."""
        whole = Part(pieces=(), columns_in=slice(0, hidden), out_features=width, in_features=hidden)
        self._keeper = keeper_of(_FORMAT, self._plain, whole, [hidden, width])
        self._keeper.create(layer, num_experts, width, hidden, dtype)
        if isinstance(self._keeper, PlainKeeper):
            for _ in range(3 if layer.gated else 2):
                self._unaided.add(num_experts * width * hidden, _FORMAT, dtype)

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Unpack one expert at a time, few rows at once."""
        if tensor.is_meta:  # of a model that is only planned
            return
        self._unaided.say()
        for own in by_expert(part) if part.num_experts else [part]:
            whole = tensor[own.expert] if part.num_experts else tensor
            for rows, layout in _FORMAT.unpacked({suffix or "weight": whole}, own):
                self._keeper.put(layer, rows, layout, own.matrix, own.expert)

    def finish(self, layer: nn.Module) -> None:
        """Let a method of plain weights repack."""
        if isinstance(self._keeper, PlainKeeper):
            self._keeper.method.finish(layer)

    def apply(self, layer: nn.Module, x: torch.Tensor, shares: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Return what the chosen experts give."""
        out: torch.Tensor = self._keeper.apply(layer, x, shares, experts)
        return out

    def product(self, layer: nn.Module, matrix: str, x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Return each row's product with the matrix of its expert."""
        out: torch.Tensor = self._keeper.product(layer, matrix, x, experts)
        return out
