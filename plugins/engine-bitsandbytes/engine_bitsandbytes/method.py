"""Plain weights quantized on load by the library.

Blocks are those of the whole weight, so sharded rows are rounded identically.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from bitsandbytes import functional

from builtin_plugins.quant_methods.api import (
    DEFAULT_BLOCK_SIZE,
    BitsAndBytes,
    EightBitFormat,
    FourBitFormat,
    Layout,
    StoredFormat,
    StoredMethod,
)
from core.api import EngineConfig
from core.model_spec.weight_shard import WeightShard
from core.models.layers.weights import refuse_integers

EIGHT: Final = "int8"
MAX_ERROR: Final = 0.1
"""Maximum relative error of a product; largest with four bits."""


def make_method(stated: Any, config: EngineConfig) -> StoredMethod:
    """Return the method that reads a bitsandbytes checkpoint, or quantizes a plain one."""
    if stated:
        return BitsAndBytes(stated)
    return OnlineBitsAndBytes(str(config.options.get("bitsandbytes_type") or "nf4"))


class OnlineFormat(StoredFormat):
    """A plain weight that the library quantizes. `kind`: nf4, fp4 or int8."""

    suffixes = ("weight",)
    quantizes_on_load = True

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._stored: StoredFormat
        if kind == EIGHT:
            self._stored = EightBitFormat()
        else:
            self._stored = FourBitFormat(kind, nested=False)
        self.layout_spec = self._stored.layout_spec
        self.bits_per_weight = self._stored.bits_per_weight

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...] | None:
        """Return the shape of the weight."""
        return shard.shape

    def unpack(self, tensors: Mapping[str, torch.Tensor], shard: WeightShard) -> Layout:
        """Return this rank's shard of the quantized weight."""
        (weight,) = tensors.values()
        refuse_integers(weight)
        whole = weight.T if shard.transposed else weight
        # Rows until a block ends with a row
        step = DEFAULT_BLOCK_SIZE // math.gcd(DEFAULT_BLOCK_SIZE, shard.in_features)
        first = min(own.start for own, _ in shard.pieces) // step * step
        last = min(-(-max(own.stop for own, _ in shard.pieces) // step) * step, len(whole))
        pieces = tuple(
            (slice(own.start - first, own.stop - first, own.step), target)
            for own, target in shard.pieces
        )
        tensors = self._quantized(whole[first:last].contiguous())
        return self._stored.unpack(
            tensors, replace(shard, pieces=pieces, out_features=last - first)
        )

    def _quantized(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the tensors that a checkpoint would have for it."""
        if self._kind == EIGHT:
            codes, furthest, _ = functional.int8_vectorwise_quant(weight.half())
            return {"weight": codes, "SCB": furthest}
        quantize, state = functional.quantize_4bit(
            weight, quant_type=self._kind, blocksize=DEFAULT_BLOCK_SIZE
        )
        return {
            "weight": quantize,
            **{f"weight.{name}": own for name, own in state.as_dict(packed=True).items()},
        }


class OnlineBitsAndBytes(StoredMethod):
    """Quantizes linear layers and experts; embedding and head stay plain."""

    name = "bitsandbytes"
    quantizes_on_load = True

    def __init__(self, kind: str) -> None:
        super().__init__(None)
        self._format = OnlineFormat(kind)

    def choose_format(self, prefix: str) -> StoredFormat | None:
        """Return the one format."""
        del prefix
        return self._format
