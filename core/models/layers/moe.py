"""Mixture of experts (MoE): routing, experts and shared expert. Reads nothing back to the host."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from core.errors import ModelError
from core.models.layers.experts import Experts
from core.models.layers.linear import AdapterSlot, Linear, Slice
from core.models.layers.mlp import Mlp, expect_scalar
from core.models.layers.norm import make_norm, optional_norm
from core.models.layers.weights import WeightMap, assign_weight, copy_weight, empty_parameter
from core.models.ops.experts import ExpertGroups

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.compressed import RouterMlpSpec
    from core.model_spec.layer import MoeSpec, ParallelExpertsSpec
    from core.model_spec.names import WeightNames
    from core.models.layers.residual import ForwardContext


class Moe(nn.Module):
    """MoE layer; each rank holds a part of every expert's width, and outputs are summed over
    ranks.
    """

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
        self.latent_in: Linear | None = None
        self.latent_out: Linear | None = None
        if spec.latent:
            into = [Slice("in", spec.latent)]
            out = [Slice("out", hidden)]
            bias = spec.latent_bias
            name = f"{layer}.{names.latent_in}"
            self.latent_in = Linear(context, weights, name, hidden, into, bias=bias)
            name = f"{layer}.{names.latent_out}"
            self.latent_out = Linear(context, weights, name, spec.latent, out, bias=bias)
        self._expect_shared(hidden, names, layer, context, weights)
        self.learned_scale = expect_scalar(
            spec.learned_scale, f"{layer}.{names.router_scale}", weights
        )
        self.always: Experts | None = None
        if spec.num_always:
            always = replace(spec, experts=spec.num_always, top_k=spec.num_always, num_always=0)
            own = replace(
                names,
                expert="",
                experts_layout="apart",
                experts_gate_up=names.shared_gate,
                experts_up=names.shared_up,
                experts_down=names.shared_down,
            )
            self.always = Experts(always, hidden, own, layer, context, weights)

    def _expect_shared(
        self, hidden: int, names: WeightNames, layer: str, context: BuildContext, weights: WeightMap
    ) -> None:
        """Build the shared expert and its gate, if the layer has them."""
        spec = self.spec
        self.shared: Mlp | None = None
        self.shared_expert_gate: nn.Parameter | None
        self.register_parameter("shared_expert_gate", None)
        if spec.shared is not None:
            own = replace(
                names, gate=names.shared_gate, up=names.shared_up, gate_up=names.shared_gate_up
            )
            self.shared = Mlp(
                spec.shared, hidden, replace(own, down=names.shared_down), layer, context, weights
            )
        if spec.shared_expert_gate:
            share = empty_parameter(1, hidden, dtype=context.dtype)
            self.register_parameter("shared_expert_gate", share)
            weights.add(
                f"{layer}.{names.shared_expert_gate}.weight",
                (1, hidden),
                lambda tensor: assign_weight(share, tensor),
            )
            self.shared_gate_adapter = AdapterSlot(f"{layer}.{names.shared_expert_gate}", 1, hidden)

    def _expect_router(
        self, hidden: int, names: WeightNames, layer: str, context: BuildContext, weights: WeightMap
    ) -> None:
        choices = self.spec.experts + self.spec.zero_experts + self.spec.skips
        experts = choices + self.spec.num_always
        dtype = torch.float32 if self.spec.router_fp32 else context.dtype
        self.router_mlp: RouterMlp | None = None
        if self.spec.router_mlp is not None:
            prefix = f"{layer}.{names.router_mlp}"
            sizes = (hidden, experts)
            self.router_mlp = RouterMlp(self.spec.router_mlp, sizes, prefix, context, weights)
        else:
            self.router = empty_parameter(experts, hidden, dtype=dtype)
            weights.add(
                f"{layer}.{names.router}.weight",
                self.router.shape,
                lambda tensor: assign_weight(self.router, tensor),
            )
            self.router_adapter = AdapterSlot(f"{layer}.{names.router}", experts, hidden)
        bias = empty_parameter(experts, dtype=dtype) if self.spec.router_bias else None
        self.router_bias: nn.Parameter | None
        self.register_parameter("router_bias", bias)
        self.router_norm = optional_norm(
            self.spec.router_norm, hidden, context, weights, f"{layer}.{names.router_norm}"
        )
        scale = empty_parameter(experts, dtype=context.dtype) if self.spec.expert_scale else None
        self.expert_scale: nn.Parameter | None
        self.register_parameter("expert_scale", scale)
        if scale is not None:
            weights.add(
                f"{layer}.{names.expert_scale}",
                (experts,),
                lambda tensor: assign_weight(scale, tensor),
            )
        if bias is not None:
            weights.add(
                f"{layer}.{names.router}.bias",
                (experts,),
                lambda tensor: assign_weight(bias, tensor),
            )
        self._expect_choice(choices, names, layer, weights)

    def _expect_choice(
        self, experts: int, names: WeightNames, layer: str, weights: WeightMap
    ) -> None:
        """Expect what the choice of experts depends on in addition to the router."""
        chosen = (
            empty_parameter(experts, dtype=torch.float32) if self.spec.correction_bias else None
        )
        self.correction_bias: nn.Parameter | None
        self.register_parameter("correction_bias", chosen)
        self.hashed_experts: nn.Parameter | None
        self.register_parameter("hashed_experts", None)
        if self.spec.num_hashed_tokens:
            size = (self.spec.num_hashed_tokens, self.spec.top_k)
            table = empty_parameter(*size, dtype=torch.int64)
            self.register_parameter("hashed_experts", table)
            weights.add(
                f"{layer}.{names.hashed_experts}",
                size,
                partial(_load_table, table.data, self.spec.experts),
            )
        if chosen is not None:
            shape = (1, experts) if names.correction_bias_row else (experts,)
            weights.add(
                f"{layer}.{names.correction_bias}",
                shape,
                lambda tensor: copy_weight(chosen.data, tensor.view(-1)),
            )

    def forward(
        self,
        x: torch.Tensor,
        routed_by: torch.Tensor | None = None,
        step: ForwardContext | None = None,
    ) -> torch.Tensor:
        """Return [n, hidden]; the router reads `routed_by`, by default x.

        `step`: of a router that reads token ids, or what an earlier one made.
        """
        read = x if routed_by is None else routed_by
        if self.router_norm is not None:
            read = self.router_norm(read)
        logits = self._logits(read, step)
        if self.spec.router_scale != 1.0:
            logits = logits * self.spec.router_scale
        chosen = None
        if self.hashed_experts is not None:
            assert step is not None, "the table of experts is read by token id"
            chosen = self.hashed_experts[step.token_ids]
        further = None
        if self.spec.num_always:
            logits, further = torch.split(logits, [self.spec.experts, self.spec.num_always], dim=-1)
        shares, experts = self._select(logits, chosen)
        if further is not None:
            shares = _weigh_together(self.spec, logits.gather(-1, experts), further)
        if self.learned_scale is not None:
            shares = shares * self.learned_scale
        if self.expert_scale is not None:
            shares = shares * self.expert_scale[experts].float()
        if self.spec.skips:
            is_skipped = experts >= self.spec.experts + self.spec.zero_experts
            shares = shares.masked_fill(is_skipped, 0.0)
            experts = experts.masked_fill(is_skipped, 0)
        identity_weight = None
        if self.spec.zero_experts:
            is_identity = experts >= self.spec.experts
            identity_weight = (shares * is_identity).sum(-1, keepdim=True)
            shares = shares.masked_fill(is_identity, 0.0)
            experts = experts.masked_fill(is_identity, 0)
        out = self._routed(x if self.latent_in is None else self.latent_in(x), shares, experts)
        if identity_weight is not None:
            out = out + x * identity_weight.to(x.dtype)
        if self.latent_out is not None:
            out = self.latent_out(out)
        if self.shared is None:
            return out
        shared: torch.Tensor = self.shared(x)
        if self.shared_expert_gate is not None:
            gate = self.shared_gate_adapter(x, self._ops.linear(x, self.shared_expert_gate))
            shared = shared * self._ops.sigmoid(gate)
        return out + shared

    def _select(
        self, logits: torch.Tensor, chosen: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return expert weights and experts, [n, top_k] each, for float32 router logits [n,
        experts]. `chosen`: the experts [n, top_k], if scores do not choose them.
        """
        spec = self.spec
        if spec.score == "sparsemixer":
            return _sparsemixer(logits, spec.top_k, spec.jitter)
        groups = ExpertGroups(spec.groups, spec.topk_groups, spec.group_top_k, spec.outside_score)
        return self._ops.select_experts(
            logits, self.correction_bias, spec.score, spec.top_k, groups, spec.renormalize,
            spec.scale, chosen,
        )  # fmt: skip

    def _logits(self, read: torch.Tensor, step: ForwardContext | None) -> torch.Tensor:
        """Return router logits [n, experts] in float32."""
        if self.router_mlp is not None:
            assert step is not None, "routers pass on what they projected"
            logits, step.router_state = self.router_mlp(read, step.router_state)
            return logits.float()  # type: ignore[no-any-return]
        read = read.to(self.router.dtype)
        product = self._ops.linear(read, self.router, self.router_bias)
        logits = self.router_adapter(read, product)
        return logits.float()  # type: ignore[no-any-return]

    def _routed(self, x: torch.Tensor, shares: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Return the output of the chosen experts, summed over ranks."""
        if self.spec.router_weight_on_input:
            return self._scaled(x, shares, experts)
        further = shares[:, self.spec.top_k :]
        out = self.experts(x, shares[:, : self.spec.top_k], experts)
        if self.always is not None:
            every = torch.arange(self.spec.num_always, device=x.device).expand(len(x), -1)
            out = out + self.always(x, further.contiguous(), every.contiguous())
        out = self._group.all_reduce(out)
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


def _load_table(table: torch.Tensor, num_experts: int, tensor: torch.Tensor) -> None:
    """Load the experts of each token id. Generated weights are floats, and choose the first."""
    found = tensor.long()
    if not tensor.is_meta and bool(((found < 0) | (found >= num_experts)).any()):
        raise ModelError(f"has other numbers than those of {num_experts} experts.")
    table.copy_(found)


def _weigh_together(spec: MoeSpec, chosen: torch.Tensor, always: torch.Tensor) -> torch.Tensor:
    """Return weights that sum to `scale`, by the sigmoids of the logits of all these experts."""
    logits = torch.cat([chosen, always], -1)
    return torch.nn.functional.logsigmoid(logits).softmax(-1) * spec.scale


def _sparsemixer(
    logits: torch.Tensor, top_k: int, jitter: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sparsemixer's experts one by one; each weight is a softmax over near-equal scores."""
    left = logits
    shares = []
    experts = []
    for _ in range(top_k):
        best, expert = left.max(dim=-1, keepdim=True)
        is_far = (best - logits) / logits.abs().clamp(min=best) > 2 * jitter
        shares.append(left.masked_fill(is_far, float("-inf")).softmax(-1).gather(-1, expert))
        experts.append(expert)
        left = left.scatter(-1, expert, float("-inf"))
    return torch.cat(shares, -1), torch.cat(experts, -1)


class RouterMlp(nn.Module):
    """Projects its input, adds the projection of the layer before, and applies an MLP."""

    def __init__(
        self,
        spec: RouterMlpSpec,
        sizes: tuple[int, int],
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        """`sizes`: of the input and of the logits."""
        super().__init__()
        hidden, experts = sizes
        within = f"{prefix}.router_mlp"
        own = [Slice("out", spec.size)]
        self.project = Linear(context, weights, f"{prefix}.down_proj", hidden, own, bias=True)
        self.norm = make_norm(spec.norm, spec.size, context, weights, f"{within}.norm")
        self.first, self.second = (
            Linear(context, weights, f"{within}.{name}", spec.size, own, bias=True)
            for name in ("fc1", "fc2")
        )
        out = [Slice("out", experts)]
        self.out = Linear(context, weights, f"{within}.out_proj", spec.size, out)
        self._gelu = context.ops.gelu
        self.scale: nn.Parameter | None
        self.register_parameter("scale", None)
        if spec.adds_previous:
            scale = empty_parameter(spec.size, dtype=context.dtype)
            self.register_parameter("scale", scale)
            load = partial(copy_weight, scale.data)
            weights.add(f"{prefix}.router_states_scale", (spec.size,), load)

    def forward(
        self, x: torch.Tensor, previous: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [n, experts], and the projection [n, size] for the next layer."""
        state = self.project(x)
        if self.scale is not None:
            assert previous is not None, "the layer before has no router of this kind"
            state = state + previous * self.scale
        inner = self._gelu(self.first(self.norm(state)))
        return self.out(self._gelu(self.second(inner))), state


class ParallelMoe(nn.Module):
    """Experts next to a dense MLP; both outputs are normalised and summed."""

    def __init__(
        self,
        spec: ParallelExpertsSpec,
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
            for name in (names.moe_norm_in, names.moe_norm_out, names.mlp_norm_out)
        )

    def forward(self, fed: torch.Tensor, stream: torch.Tensor) -> torch.Tensor:
        """Return the sum of what the MLP gave and of what experts make of the stream."""
        experts = self.moe(self.norm_in(stream), routed_by=stream)
        return self.norm_mlp(fed) + self.norm_out(experts)  # type: ignore[no-any-return]
