"""State-space layers: Mamba and Mamba 2."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from core.model_spec.kv import RecurrentState
from core.model_spec.parallel import ParallelGroup
from core.models.layers.linear import Linear, Slice
from core.models.layers.norm import make_norm
from core.models.layers.short_conv import ShortConv
from core.models.layers.state import state_dtype
from core.models.layers.weights import copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.recurrent import Mamba2Spec, MambaSpec
    from core.models.layers.state import SegmentGroup, StatePlan, States
    from core.models.layers.weights import WeightMap


class Mamba(nn.Module):
    """Mamba: a short convolution, then a gated selective scan over channels.

    Channels are split over ranks. State: the convolution's last inputs and [width, state_size].
    """

    def __init__(
        self, spec: MambaSpec, hidden: int, prefix: str, context: BuildContext, weights: WeightMap
    ) -> None:
        super().__init__()
        width = spec.width
        rank = spec.dt_rank
        size = spec.state_size
        self._scan = context.ops.selective_scan
        both = [Slice("x", width), Slice("gate", width)]
        self.in_proj = Linear(
            context, weights, f"{prefix}.in_proj", hidden, both, split="rows", bias=spec.bias
        )
        self.conv = ShortConv(
            both[:1],
            spec.kernel,
            context,
            weights,
            f"{prefix}.conv1d",
            bias=spec.conv_bias,
            activation=spec.activation,
        )
        three = [Slice("step", rank), Slice("write", size), Slice("read", size)]
        self.choose = Linear(context, weights, f"{prefix}.x_proj", width, three, split="columns")
        step = [Slice("step", width)]
        out = [Slice("out", hidden)]
        self.step = Linear(
            context, weights, f"{prefix}.dt_proj", rank, step, split="rows", bias=True
        )
        self.out_proj = Linear(
            context, weights, f"{prefix}.out_proj", width, out, split="columns", bias=spec.bias
        )
        self.norms = nn.ModuleList()
        if spec.norm is not None:
            names = {"dt": rank, "b": size, "c": size}
            self.norms.extend(
                make_norm(spec.norm, part, context, weights, f"{prefix}.{name}_layernorm")
                for name, part in names.items()
            )
        self._group = group = context.group
        own = group.share(width, "width of a state space")
        self.decay = empty_parameter(own, size, dtype=torch.float32)
        self.skip = empty_parameter(own, dtype=torch.float32)
        weights.add(f"{prefix}.A_log", (width, size), self._load_decay)
        weights.add(
            f"{prefix}.D",
            (width,),
            lambda tensor: copy_weight(self.skip.data, group.cut(tensor, 0)),
        )
        self.kv_spec = RecurrentState((self.conv.state_part, ((own, size), state_dtype(context))))
        self.cache: States | None = None

    def _load_decay(self, tensor: torch.Tensor) -> None:
        copy_weight(self.decay.data, self._group.cut(tensor, 0))
        self.decay.data.exp_().neg_()

    def forward(self, x: torch.Tensor, plan: StatePlan) -> torch.Tensor:
        """Return [num_tokens, hidden]; states go to the cache."""
        parts = self.in_proj(x)
        rows = self.in_proj.slices
        out = plan.compute(self._segments, parts[:, rows["x"]])
        result: torch.Tensor = self.out_proj(
            (out * F.silu(parts[:, rows["gate"]].float())).to(x.dtype)
        )
        return result

    def _segments(self, run: SegmentGroup, fed: torch.Tensor) -> torch.Tensor:
        """Return the scan output, [n, length, width] in float32."""
        assert self.cache is not None, "bind_kv was not called"
        inputs, states = self.cache
        x = self.conv(fed, run, inputs)
        chosen = self.choose(x, run.tokens)
        parts = [chosen[..., rows] for rows in self.choose.slices.values()]
        step, write, read = (
            [norm(part) for norm, part in zip(self.norms, parts, strict=True)]
            if self.norms
            else parts
        )
        step = F.softplus(self.step(step, run.tokens).float())
        out, last = self._scan(x, step, self.decay, write, read, run.load(states))
        run.store(states, last)
        return out + x.float() * self.skip  # type: ignore[no-any-return]


class Mamba2(nn.Module):
    """Mamba 2: a short convolution, then a gated and normalised scan over heads.

    Heads are split over ranks; with fewer groups than ranks, ranks hold copies of groups. State:
    the convolution's last inputs and [heads, head_size, state_size].
    """

    def __init__(
        self, spec: Mamba2Spec, hidden: int, prefix: str, context: BuildContext, weights: WeightMap
    ) -> None:
        super().__init__()
        self.spec = spec
        self._scan = context.ops.ssd_scan
        group = context.group
        shared = spec.groups * spec.state_size
        width = spec.width
        parts = min(spec.groups, group.size)
        self.heads = group.share(spec.heads, "heads of a state space")
        self.groups = spec.groups // parts
        slices = [Slice("gate", width), Slice("x", width), Slice("write", shared, parts=parts)]
        slices += [Slice("read", shared, parts=parts), Slice("step", spec.heads)]
        self.in_proj = Linear(
            context, weights, f"{prefix}.in_proj", hidden, slices, split="rows", bias=spec.bias
        )
        fed = slices[1:4]
        self.conv = ShortConv(
            fed,
            spec.kernel,
            context,
            weights,
            f"{prefix}.conv1d",
            bias=spec.conv_bias,
            activation=spec.activation,
        )
        self.norm = None
        if spec.norm is not None:
            self.norm = GatedGroupNorm(spec, context, weights, f"{prefix}.norm")
        bias = spec.bias if spec.out_bias is None else spec.out_bias
        out = [Slice("out", hidden)]
        self.out_proj = Linear(
            context, weights, f"{prefix}.out_proj", width, out, split="columns", bias=bias
        )
        self._group = group
        self.step_bias, self.decay, self.skip = (
            empty_parameter(self.heads, dtype=torch.float32) for _ in range(3)
        )
        weights.add(f"{prefix}.dt_bias", (spec.heads,), partial(self._load_own, self.step_bias))
        weights.add(f"{prefix}.D", (spec.heads,), partial(self._load_own, self.skip))
        weights.add(f"{prefix}.A_log", (spec.heads,), self._load_decay)
        rows = self.in_proj.slices.values()
        scales = [
            torch.full((r.stop - r.start,), scale)
            for r, scale in zip(rows, spec.scales, strict=False)
        ]
        self.scales: torch.Tensor | None
        self.register_buffer("scales", torch.cat(scales).to(context.dtype) if scales else None)
        state = (self.heads, spec.head_size, spec.state_size)
        self.kv_spec = RecurrentState((self.conv.state_part, (state, state_dtype(context))))
        self.cache: States | None = None

    def _load_own(self, parameter: nn.Parameter, tensor: torch.Tensor) -> None:
        copy_weight(parameter.data, self._group.cut(tensor, 0))

    def _load_decay(self, tensor: torch.Tensor) -> None:
        self._load_own(self.decay, tensor)
        self.decay.data.exp_().neg_()

    def forward(self, x: torch.Tensor, plan: StatePlan) -> torch.Tensor:
        """Return [num_tokens, hidden]; states go to the cache."""
        spec = self.spec
        parts = self.in_proj(x if spec.in_scale == 1.0 else x * spec.in_scale)
        if self.scales is not None:
            parts = parts * self.scales
        rows = self.in_proj.slices
        fed = parts[:, rows["x"].start : rows["read"].stop]
        step = F.softplus(parts[:, rows["step"]].float() + self.step_bias)
        if spec.dt_min > 0.0 or spec.dt_max != float("inf"):
            step = step.clamp(spec.dt_min, spec.dt_max)
        out: torch.Tensor = self._gated(
            plan.compute(self._segments, fed, step), parts[:, rows["gate"]]
        )
        out = self.out_proj(out.to(x.dtype))
        return out if spec.out_scale == 1.0 else out * spec.out_scale

    def _segments(self, run: SegmentGroup, fed: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        """Return the scan output, [n, length, width] in float32."""
        assert self.cache is not None, "bind_kv was not called"
        spec = self.spec
        inputs, states = self.cache
        sizes = [
            self.heads * spec.head_size,
            self.groups * spec.state_size,
            self.groups * spec.state_size,
        ]
        seen = self.conv(fed, run, inputs)
        x, write, read = torch.split(seen, sizes, -1)
        x = x.view(run.count, run.length, self.heads, -1)
        write = write.view(run.count, run.length, self.groups, -1)
        read = read.view(run.count, run.length, self.groups, -1)
        out, last = self._scan(x, step, self.decay, write, read, run.load(states))
        run.store(states, last)
        return (out + x.float() * self.skip[:, None]).flatten(2)

    def _gated(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        if self.norm is not None:
            return self.norm(out, gate)  # type: ignore[no-any-return]
        return out * F.silu(gate.float())


class GatedGroupNorm(nn.Module):
    """SiLU gate and RMSNorm per group, in float32.

    If the number of ranks does not divide the groups, every rank computes all groups.
    """

    def __init__(
        self, spec: Mamba2Spec, context: BuildContext, weights: WeightMap, prefix: str
    ) -> None:
        super().__init__()
        assert spec.norm is not None
        self._eps = spec.norm.eps
        self._norm_first = spec.norm_first
        whole = ParallelGroup()
        self._group = context.group if spec.groups % context.group.size else whole
        split = whole if spec.groups % context.group.size else context.group
        self._groups = split.share(spec.groups, "groups of a state space")
        self.weight = empty_parameter(
            split.share(spec.width, "width of a state space"), dtype=context.dtype
        )
        weights.add(
            f"{prefix}.weight",
            (spec.width,),
            lambda tensor: copy_weight(self.weight.data, split.cut(tensor, 0)),
        )

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return x [n, width], gated and normalised."""
        x = self._group.all_gather(x)
        gate = F.silu(self._group.all_gather(gate).float())
        if not self._norm_first:
            x = x * gate
        grouped = x.view(*x.shape[:-1], self._groups, -1)
        x = grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + self._eps)
        x = x.flatten(-2) * self.weight
        return self._group.cut(x * gate if self._norm_first else x, 1)
