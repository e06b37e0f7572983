"""Plain weights rounded by the library while they load.

Blocks are those of the whole weight, so that ranks round alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from bitsandbytes import functional

from builtin_plugins.quant_methods.api import (
    USUAL_BLOCK,
    BitsAndBytes,
    EightBitFormat,
    FourBitFormat,
)
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.layouts import Layout
from builtin_plugins.quant_methods.stored.method import StoredMethod
from core.api import EngineConfig, Part
from core.models.layers.weights import refuse_integers

EIGHT: Final = "int8"
MOST_ERROR: Final = 0.1
"""Share of their size that products may be off by; most in four bits."""


def make_method(stated: Any, config: EngineConfig) -> StoredMethod:
    """Return what reads a checkpoint of bitsandbytes, or quantizes a plain one."""
    return (
        BitsAndBytes(stated)
        if stated
        else Rounding(str(config.options.get("bitsandbytes_type") or "nf4"))
    )


class RoundedFormat(StoredFormat):
    """A plain weight, which becomes what the library makes of it. `kind`: nf4, fp4 or int8."""

    suffixes = ("weight",)
    reads_plain = True

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._stored: StoredFormat = (
            EightBitFormat() if kind == EIGHT else FourBitFormat(kind, nested=False)
        )
        self.grouping = self._stored.grouping
        self.stored_bits = self._stored.stored_bits

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return the shape of the weight."""
        return part.shape

    def unpack(self, tensors: Mapping[str, torch.Tensor], part: Part) -> Layout:
        """Return the rank's part of the rounded weight."""
        (weight,) = tensors.values()
        refuse_integers(weight)
        whole = weight.T if part.transposed else weight
        step = USUAL_BLOCK // math.gcd(USUAL_BLOCK, part.in_features)  # rows that end with a block
        first = min(own.start for own, _ in part.pieces) // step * step
        last = min(-(-max(own.stop for own, _ in part.pieces) // step) * step, len(whole))
        pieces = tuple(
            (slice(own.start - first, own.stop - first, own.step), target)
            for own, target in part.pieces
        )
        tensors = self._rounded(whole[first:last].contiguous())
        return self._stored.unpack(tensors, replace(part, pieces=pieces, out_features=last - first))

    def _rounded(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the tensors that a checkpoint would have of it."""
        if self._kind == EIGHT:
            codes, furthest, _ = functional.int8_vectorwise_quant(weight.half())
            return {"weight": codes, "SCB": furthest}
        packed, state = functional.quantize_4bit(
            weight, quant_type=self._kind, blocksize=USUAL_BLOCK
        )
        return {
            "weight": packed,
            **{f"weight.{name}": own for name, own in state.as_dict(packed=True).items()},
        }


class Rounding(StoredMethod):
    """Linear layers and experts; embedding and head stay plain."""

    name = "bitsandbytes"
    rounds_plain = True

    def __init__(self, kind: str) -> None:
        super().__init__(None)
        self._format = RoundedFormat(kind)

    def decide(self, prefix: str) -> StoredFormat | None:
        """Return the one format."""
        del prefix
        return self._format
