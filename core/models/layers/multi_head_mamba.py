"""Mamba with heads (Zamba): each has its own projections to dt, B and C."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from core.model_spec.kv import RecurrentState
from core.models.layers.linear import Linear, Slice
from core.models.layers.short_conv import ShortConv
from core.models.layers.state import state_dtype
from core.models.layers.weights import copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.recurrent import MambaSpec
    from core.models.layers.state import SegmentGroup, StatePlan, States
    from core.models.layers.weights import WeightMap


class MultiHeadMamba(nn.Module):
    """Mamba with heads, which are split over ranks.

    State: the convolution's last inputs and [width, state_size].
    """

    def __init__(
        self, spec: MambaSpec, hidden: int, prefix: str, context: BuildContext, weights: WeightMap
    ) -> None:
        super().__init__()
        self.spec = spec
        width = spec.width
        self._scan = context.ops.selective_scan
        self._group = context.group
        self.heads = context.group.share(spec.heads, "heads of a state space")
        self.size = width // spec.heads
        both = [Slice("x", width), Slice("gate", width)]
        # Checkpoint rows alternate: a channel, its gate.
        order = [2 * channel + part for part in range(2) for channel in range(width)]
        self.in_proj = Linear(
            context,
            weights,
            f"{prefix}.in_proj",
            hidden,
            both,
            split="rows",
            bias=spec.bias,
            order=order,
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
        self.out_proj = Linear(
            context,
            weights,
            f"{prefix}.out_proj",
            width,
            [Slice("out", hidden)],
            split="columns",
            bias=spec.bias,
        )
        rows = spec.dt_rank + 2 * spec.state_size
        self.choose = self._expect((rows, self.size), f"{prefix}.x_proj_weight", context, weights)
        self.step = self._expect(
            (self.size, spec.dt_rank), f"{prefix}.dt_proj_weight", context, weights
        )
        self.step_bias = self._expect((self.size,), f"{prefix}.dt_proj_bias", context, weights)
        self.skip = self._expect((self.size,), f"{prefix}.D", context, weights)
        self.decay = self._expect((self.size, spec.state_size), f"{prefix}.A_log", context, weights)
        weights.change(f"{prefix}.A_log", lambda tensor: -tensor.float().exp())
        state = (self.heads * self.size, spec.state_size)
        self.kv_spec = RecurrentState((self.conv.state_part, (state, state_dtype(context))))
        self.cache: States | None = None

    def _expect(
        self, shape: tuple[int, ...], name: str, context: BuildContext, weights: WeightMap
    ) -> nn.Parameter:
        """Return a parameter [heads, *shape] of this rank's heads, in float32."""
        parameter = empty_parameter(self.heads, *shape, dtype=torch.float32)
        cut = context.group.cut
        weights.add(
            name,
            (self.spec.heads, *shape),
            lambda tensor: copy_weight(parameter.data, cut(tensor, 0)),
        )
        return parameter

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
        x = self.conv(fed, run, inputs).float().view(run.count, run.length, self.heads, -1)
        before = run.load(states).view(run.count, self.heads, self.size, -1)
        outputs = []
        after = []
        for head in range(self.heads):
            own = x[:, :, head]
            sizes = (self.spec.dt_rank, self.spec.state_size, self.spec.state_size)
            step, write, read = (own @ self.choose[head].T).split(sizes, -1)
            step = F.softplus(step @ self.step[head].T + self.step_bias[head])
            out, last = self._scan(own, step, self.decay[head], write, read, before[:, head])
            outputs.append(out + own * self.skip[head])
            after.append(last)
        run.store(states, torch.cat(after, dim=1))
        return torch.cat(outputs, dim=-1)
