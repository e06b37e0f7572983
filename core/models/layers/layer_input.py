"""What a layer gets besides the stream: its own embedding of each token, and experts beside its
MLP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from core.models.layers.activation import make_activation
from core.models.layers.embedding import Embedding
from core.models.layers.linear import Linear, Slice
from core.models.layers.moe import Moe
from core.models.layers.norm import make_norm

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec.decoder import BesideSpec, LayerInputSpec
    from core.model_spec.names import WeightNames
    from core.models.layers.weights import WeightMap


class LayerInputs(nn.Module):
    """The embeddings of all layers: looked up, and computed from the model's own embedding."""

    def __init__(
        self,
        spec: LayerInputSpec,
        num_layers: int,
        hidden: int,
        names: WeightNames,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        width = num_layers * spec.size
        self.table = Embedding(spec.vocab_size, width, context, weights, names.layer_embed)
        self.project = Linear(context, weights, names.layer_project, hidden, [Slice("out", width)])
        self.norm = make_norm(spec.norm, spec.size, context, weights, names.layer_project_norm)
        self._shape = (-1, num_layers, spec.size)
        self._scale = spec.size**0.5
        self._project_scale = hidden**-0.5

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return [n, layers, size] for tokens and their embeddings."""
        known = self.table(ids).view(self._shape) * self._scale
        computed = self.norm((self.project(x) * self._project_scale).view(self._shape))
        return (known + computed) * 0.5**0.5  # type: ignore[no-any-return]


class LayerInput(nn.Module):
    """Adds to the stream what a layer makes of its own embedding."""

    def __init__(
        self,
        spec: LayerInputSpec,
        hidden: int,
        names: WeightNames,
        layer: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self.gate = Linear(
            context, weights, f"{layer}.{names.layer_gate}", hidden, [Slice("gate", spec.size)]
        )
        self.out = Linear(
            context, weights, f"{layer}.{names.layer_out}", spec.size, [Slice("out", hidden)]
        )
        self.norm = make_norm(
            spec.norm, hidden, context, weights, f"{layer}.{names.layer_out_norm}"
        )
        self.activate = make_activation(
            spec.activation, gated=False, prefix="", context=context, weights=weights
        )

    def forward(self, x: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """Return the stream [n, hidden] after adding; `own` is [n, size]."""
        return x + self.norm(self.out(self.activate(self.gate(x)) * own))  # type: ignore[no-any-return]


class Beside(nn.Module):
    """Experts beside an MLP."""

    def __init__(
        self,
        spec: BesideSpec,
        hidden: int,
        names: WeightNames,
        layer: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self.moe = Moe(spec.moe, hidden, names, layer, context, weights)
        self.norm_in, self.norm_out, self.norm_mlp = (
            make_norm(spec.norm, hidden, context, weights, f"{layer}.{name}")
            for name in (names.beside_in, names.beside_out, names.beside_mlp)
        )

    def forward(self, fed: torch.Tensor, stream: torch.Tensor) -> torch.Tensor:
        """Return the sum of what the MLP gave and of what experts make of the stream."""
        experts = self.moe(self.norm_in(stream), routed_by=stream)
        return self.norm_mlp(fed) + self.norm_out(experts)  # type: ignore[no-any-return]
