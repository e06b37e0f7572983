"""Mamba: a state space of channels behind a short convolution, its result gated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from core.model_spec.kv import RecurrentState
from core.models.layers.linear import Linear, Slice
from core.models.layers.norm import optional_norm
from core.models.layers.short_conv import ShortConv
from core.models.layers.state import state_dtype
from core.models.layers.weights import empty_parameter, fill

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec.recurrent import MambaSpec
    from core.models.layers.state import Run, StatePlan, States
    from core.models.layers.weights import WeightMap


class Mamba(nn.Module):
    """One layer, its channels split over ranks.

    Its state: the convolution's last inputs, and [width, state_size].
    """

    def __init__(
        self, spec: MambaSpec, hidden: int, prefix: str, context: BuildContext, weights: WeightMap
    ) -> None:
        super().__init__()
        width = spec.width
        rank = spec.step_rank
        size = spec.state_size
        self._scan = context.ops.selective_scan
        both = [Slice("x", width), Slice("gate", width)]
        self.inward = Linear(
            context, weights, f"{prefix}.in_proj", hidden, both, split="rows", bias=spec.bias
        )
        self.conv = ShortConv(
            both[:1], spec.kernel, context, weights, f"{prefix}.conv1d", bias=spec.conv_bias
        )
        three = [Slice("step", rank), Slice("write", size), Slice("read", size)]
        self.choose = Linear(context, weights, f"{prefix}.x_proj", width, three, split="columns")
        step = [Slice("step", width)]
        out = [Slice("out", hidden)]
        self.step = Linear(
            context, weights, f"{prefix}.dt_proj", rank, step, split="rows", bias=True
        )
        self.outward = Linear(
            context, weights, f"{prefix}.out_proj", width, out, split="columns", bias=spec.bias
        )
        self.norms = nn.ModuleList()
        if spec.norm is not None:
            names = {"dt": rank, "b": size, "c": size}
            self.norms.extend(
                optional_norm(spec.norm, part, context, weights, f"{prefix}.{name}_layernorm")  # type: ignore[misc]
                for name, part in names.items()
            )
        self._group = group = context.group
        own = group.share(width, "width of a state space")
        self.decay = empty_parameter(own, size, dtype=torch.float32)
        self.skip = empty_parameter(own, dtype=torch.float32)
        weights.add(f"{prefix}.A_log", (width, size), self._take_decay)
        weights.add(
            f"{prefix}.D", (width,), lambda tensor: fill(self.skip.data, group.cut(tensor, 0))
        )
        self.kv_spec = RecurrentState((self.conv.state_part, ((own, size), state_dtype(context))))
        self.cache: States | None = None

    def _take_decay(self, tensor: torch.Tensor) -> None:
        fill(self.decay.data, self._group.cut(tensor, 0))
        self.decay.data.exp_().neg_()

    def forward(self, x: torch.Tensor, plan: StatePlan) -> torch.Tensor:
        """Return [num_tokens, hidden]; states go to the cache."""
        parts = self.inward(x)
        rows = self.inward.slices
        out = plan.compute(self._segments, parts[:, rows["x"]])
        return self.outward((out * F.silu(parts[:, rows["gate"]].float())).to(x.dtype))  # type: ignore[no-any-return]

    def _segments(self, run: Run, fed: torch.Tensor) -> torch.Tensor:
        """Return what the state space gives, [n, length, width] in float32."""
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
