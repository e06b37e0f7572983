"""Mixture of experts: a router chooses for each token, the `moe` op computes; nothing is read back
to the host.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from core.models.layers.adapted import Adapted
from core.models.layers.experts import Experts
from core.models.layers.linear import Linear, Slice
from core.models.layers.mlp import Mlp
from core.models.layers.norm import optional_norm
from core.models.layers.routing import choose
from core.models.layers.weights import WeightMap, empty_parameter, fill, place

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec.decoder import MoeSpec
    from core.model_spec.names import WeightNames


class Moe(nn.Module):
    """Every rank holds a part of each expert's width; outputs are summed over the ranks."""

    def __init__(
        self,
        spec: MoeSpec,
        hidden: int,
        names: WeightNames,
        layer: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self.spec = spec
        self._group = context.group
        self._ops = context.ops
        self._expect_router(hidden, names, layer, context, weights)
        self.experts = Experts(spec, spec.latent or hidden, names, layer, context, weights)
        self.latent_in = self.latent_out = None
        if spec.latent:
            latent_in = f"{layer}.{names.latent_in}"
            latent_out = f"{layer}.{names.latent_out}"
            self.latent_in = Linear(
                context,
                weights,
                latent_in,
                hidden,
                [Slice("in", spec.latent)],
                bias=spec.latent_bias,
            )
            self.latent_out = Linear(
                context,
                weights,
                latent_out,
                spec.latent,
                [Slice("out", hidden)],
                bias=spec.latent_bias,
            )
        self.shared: Mlp | None = None
        self.shared_share: nn.Parameter | None
        self.register_parameter("shared_share", None)
        if spec.shared is not None:
            own = replace(
                names, gate=names.shared_gate, up=names.shared_up, gate_up=names.shared_gate_up
            )
            self.shared = Mlp(
                spec.shared, hidden, replace(own, down=names.shared_down), layer, context, weights
            )
        if spec.shared_gate:
            share = empty_parameter(1, hidden, dtype=context.dtype)
            self.register_parameter("shared_share", share)
            weights.add(
                f"{layer}.{names.shared_share}.weight",
                (1, hidden),
                lambda tensor: place(share, tensor),
            )
            self.adapted_share = Adapted(f"{layer}.{names.shared_share}", 1, hidden)

    def _expect_router(
        self, hidden: int, names: WeightNames, layer: str, context: BuildContext, weights: WeightMap
    ) -> None:
        experts = self.spec.experts + self.spec.zero_experts
        dtype = torch.float32 if self.spec.wide_router else context.dtype
        self.router = empty_parameter(experts, hidden, dtype=dtype)
        weights.add(
            f"{layer}.{names.router}.weight",
            self.router.shape,
            lambda tensor: place(self.router, tensor),
        )
        self.adapted_router = Adapted(f"{layer}.{names.router}", experts, hidden)
        bias = empty_parameter(experts, dtype=dtype) if self.spec.router_bias else None
        chosen = empty_parameter(experts, dtype=torch.float32) if self.spec.choice_bias else None
        self.router_bias: nn.Parameter | None
        self.choice_bias: nn.Parameter | None
        self.register_parameter("router_bias", bias)
        self.register_parameter("choice_bias", chosen)
        self.router_norm = optional_norm(
            self.spec.router_norm, hidden, context, weights, f"{layer}.{names.router_norm}"
        )
        scale = empty_parameter(experts, dtype=context.dtype) if self.spec.expert_scale else None
        self.expert_scale: nn.Parameter | None
        self.register_parameter("expert_scale", scale)
        if scale is not None:
            weights.add(
                f"{layer}.{names.expert_scale}", (experts,), lambda tensor: place(scale, tensor)
            )
        if bias is not None:
            weights.add(
                f"{layer}.{names.router}.bias", (experts,), lambda tensor: place(bias, tensor)
            )
        if chosen is not None:
            shape = (1, experts) if names.choice_bias_row else (experts,)
            weights.add(
                f"{layer}.{names.choice_bias}",
                shape,
                lambda tensor: fill(chosen.data, tensor.view(-1)),
            )

    def forward(self, x: torch.Tensor, routed_by: torch.Tensor | None = None) -> torch.Tensor:
        """Return [n, hidden]; the router reads `routed_by` where it is not x."""
        read = x if routed_by is None else routed_by
        if self.router_norm is not None:
            read = self.router_norm(read)
        read = read.to(self.router.dtype)
        logits = self.adapted_router(
            read, self._ops.linear(read, self.router, self.router_bias)
        ).float()  # [n, experts]
        if self.spec.router_scale != 1.0:
            logits = logits * self.spec.router_scale
        shares, experts = choose(self.spec, logits, self.choice_bias)
        if self.expert_scale is not None:
            shares = shares * self.expert_scale[experts].float()
        kept = None
        if self.spec.zero_experts:
            whole = experts >= self.spec.experts
            kept = (shares * whole).sum(-1, keepdim=True)
            shares = shares.masked_fill(whole, 0.0)
            experts = experts.masked_fill(whole, 0)
        out = self._routed(x if self.latent_in is None else self.latent_in(x), shares, experts)
        if kept is not None:
            out = out + x * kept.to(x.dtype)
        if self.latent_out is not None:
            out = self.latent_out(out)
        if self.shared is None:
            return out
        shared: torch.Tensor = self.shared(x)
        if self.shared_share is not None:
            shared = (
                shared * self.adapted_share(x, self._ops.linear(x, self.shared_share)).sigmoid()
            )
        return out + shared

    def _routed(self, x: torch.Tensor, shares: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Return what the chosen experts give."""
        if self.spec.scaled_input:
            return self._scaled(x, shares, experts)
        out = self._group.all_reduce(self.experts(x, shares, experts))
        if self.experts.down_bias is None:
            return out
        weights = torch.zeros(len(x), self.spec.experts, device=x.device).scatter_(
            1, experts, shares
        )
        return out + self._ops.linear(weights.to(x.dtype), self.experts.down_bias.T)

    def _scaled(self, x: torch.Tensor, shares: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Return the sum of experts that each read the token times their share: as tokens of one
        expert each.
        """
        count, top_k = shares.shape
        parts = (x[:, None] * shares[..., None].to(x.dtype)).flatten(0, 1)  # [n * k, hidden]
        out = self.experts(parts, torch.ones_like(shares).view(-1, 1), experts.view(-1, 1))
        return self._group.all_reduce(out.view(count, top_k, -1).sum(1))
