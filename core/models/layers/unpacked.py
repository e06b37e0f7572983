"""A weight that a module takes plain and rearranges, in whatever format the checkpoint has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from core.contracts.part import Part
from core.models.layers.kept import KeptLayer, put_onto
from core.models.layers.linear import PlainLinear

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.models.layers.weights import WeightMap


class Unpacked(KeptLayer):
    """Gives `take` this rank's rows [n, in] of a weight after each load; between loads it keeps
    nothing.

    A quantization method that unpacks what is stored (`onto`) is asked; of others the weight is
    read plain.
    """

    def __init__(
        self,
        context: BuildContext,
        weights: WeightMap,
        prefix: str,
        shape: tuple[int, int],
        own: slice,
        take: Callable[[torch.Tensor], None],
    ) -> None:
        super().__init__()
        self.ops = context.ops
        pieces = ((own, slice(0, own.stop - own.start)),)
        part = Part(
            pieces=pieces,
            columns_in=slice(0, shape[1]),
            out_features=shape[0],
            in_features=shape[1],
        )
        self.parts = {prefix: part}
        self._sizes = (shape[1], own.stop - own.start)
        self._dtype = context.dtype
        self._give = take
        asked = context.quant.linear(prefix)
        self.method = put_onto(asked, PlainLinear) if hasattr(asked, "onto") else PlainLinear()
        self.expect(weights, prefix, part)

    def finish(self) -> None:
        """Let the method repack, and give the weight away."""
        if self._is_fresh:
            super().finish()
            self._give(self.weight.data)  # type: ignore[arg-type]
            del self.weight

    def _take(self, suffix: str, part: Part, tensor: torch.Tensor) -> None:
        if not hasattr(self, "weight"):
            self.method.create(self, *self._sizes, self._dtype)
        super()._take(suffix, part, tensor)
