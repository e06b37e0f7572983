"""A place where adapters may add to a product of a weight that some other module keeps: a router's,
a shared gate's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from core.contracts.part import Part

if TYPE_CHECKING:
    import torch

    from core.models.layers.linear import Adapter


class Adapted(nn.Module):
    """Every rank has the whole of the weight [out, in]."""

    adapter: Adapter | None

    def __init__(self, prefix: str, out_features: int, in_features: int) -> None:
        super().__init__()
        self.adapter = None
        rows = slice(0, out_features)
        columns = slice(0, in_features)
        part = Part(
            pieces=((rows, rows),),
            columns_in=columns,
            out_features=out_features,
            in_features=in_features,
        )
        self.parts = {prefix: part}
        self.prefixes = {prefix: rows}

    def forward(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Return the product `out` of x, changed where there is an adapter."""
        return out if self.adapter is None else self.adapter(self, x, out)
