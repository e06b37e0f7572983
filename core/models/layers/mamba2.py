"""Mamba 2: a state space of heads behind a short convolution, its result gated and normalised."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from core.model_spec.kv import RecurrentState
from core.models.layers.linear import Linear, Slice
from core.models.layers.parallel import ParallelGroup
from core.models.layers.short_conv import ShortConv
from core.models.layers.state import state_dtype
from core.models.layers.weights import empty_parameter, fill

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec.recurrent import Mamba2Spec
    from core.models.layers.state import Run, StatePlan, States
    from core.models.layers.weights import WeightMap


class Mamba2(nn.Module):
    """One layer. Its state: the convolution's last inputs, and [heads, head_size, state_size].

    Heads are split over ranks; with fewer groups than ranks, ranks hold copies of them.
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
        self.inward = Linear(
            context, weights, f"{prefix}.in_proj", hidden, slices, split="rows", bias=spec.bias
        )
        fed = slices[1:4]
        self.conv = ShortConv(
            fed, spec.kernel, context, weights, f"{prefix}.conv1d", bias=spec.conv_bias
        )
        self.norm = None
        if spec.norm is not None:
            self.norm = GatedGroupNorm(spec, context, weights, f"{prefix}.norm")
        bias = spec.bias if spec.out_bias is None else spec.out_bias
        out = [Slice("out", hidden)]
        self.outward = Linear(
            context, weights, f"{prefix}.out_proj", width, out, split="columns", bias=bias
        )
        self._group = group
        self.step_bias, self.decay, self.skip = (
            empty_parameter(self.heads, dtype=torch.float32) for _ in range(3)
        )
        weights.add(f"{prefix}.dt_bias", (spec.heads,), partial(self._take, self.step_bias))
        weights.add(f"{prefix}.D", (spec.heads,), partial(self._take, self.skip))
        weights.add(f"{prefix}.A_log", (spec.heads,), self._take_decay)
        rows = self.inward.slices.values()
        scales = [
            torch.full((r.stop - r.start,), scale)
            for r, scale in zip(rows, spec.scales, strict=False)
        ]
        self.scales: torch.Tensor | None
        self.register_buffer("scales", torch.cat(scales).to(context.dtype) if scales else None)
        state = (self.heads, spec.head_size, spec.state_size)
        self.kv_spec = RecurrentState((self.conv.state_part, (state, state_dtype(context))))
        self.cache: States | None = None

    def _take(self, parameter: nn.Parameter, tensor: torch.Tensor) -> None:
        fill(parameter.data, self._group.cut(tensor, 0))

    def _take_decay(self, tensor: torch.Tensor) -> None:
        self._take(self.decay, tensor)
        self.decay.data.exp_().neg_()

    def forward(self, x: torch.Tensor, plan: StatePlan) -> torch.Tensor:
        """Return [num_tokens, hidden]; states go to the cache."""
        spec = self.spec
        parts = self.inward(x if spec.in_scale == 1.0 else x * spec.in_scale)
        if self.scales is not None:
            parts = parts * self.scales
        rows = self.inward.slices
        fed = parts[:, rows["x"].start : rows["read"].stop]
        step = F.softplus(parts[:, rows["step"]].float() + self.step_bias)
        if spec.least_step > 0.0 or spec.most_step != float("inf"):
            step = step.clamp(spec.least_step, spec.most_step)
        out: torch.Tensor = self._gated(
            plan.compute(self._segments, fed, step), parts[:, rows["gate"]]
        )
        out = self.outward(out.to(x.dtype))
        return out if spec.out_scale == 1.0 else out * spec.out_scale

    def _segments(self, run: Run, fed: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        """Return what the state space gives, [n, length, width] in float32."""
        assert self.cache is not None, "bind_kv was not called"
        spec, (inputs, states) = self.spec, self.cache
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
    """Gates with silu and normalises each group by its root mean square, in float32.

    Where ranks do not divide the groups, each computes them all.
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
            lambda tensor: fill(self.weight.data, split.cut(tensor, 0)),
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
