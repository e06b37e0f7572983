"""A real-gated linear recurrence behind a short convolution: the recurrent layer of Griffin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from core.model_spec.kv import RecurrentState
from core.models.layers.activation import make_activation
from core.models.layers.linear import Linear, Slice
from core.models.layers.short_conv import ShortConv
from core.models.layers.state import state_dtype
from core.models.layers.weights import WeightMap, empty_parameter, fill

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec.recurrent import RgLruSpec
    from core.models.layers.state import Run, StatePlan, States


class RgLru(nn.Module):
    """One layer, its heads split over ranks.

    Its state: the convolution's last inputs, and a number of each channel.
    """

    def __init__(
        self, spec: RgLruSpec, hidden: int, prefix: str, context: BuildContext, weights: WeightMap
    ) -> None:
        super().__init__()
        self.spec = spec
        width = spec.width
        self._sum = context.ops.fading_sum
        slices = [
            Slice("x", width, f"{prefix}.linear_x"),
            Slice("gate", width, f"{prefix}.linear_y"),
        ]
        self.inward = Linear(
            context, weights, slices[0].prefix, hidden, slices, split="rows", bias=True
        )
        self.activation = make_activation(
            spec.activation, gated=False, prefix=prefix, context=context, weights=weights
        )
        fed = [Slice("x", width)]
        out = [Slice("out", hidden)]
        self.conv = ShortConv(
            fed, spec.kernel, context, weights, f"{prefix}.conv_1d", bias=True, activate=False
        )
        self.outward = Linear(
            context, weights, f"{prefix}.linear_out", width, out, split="columns", bias=True
        )
        self._group = context.group
        self.heads = context.group.share(spec.heads, "heads of a recurrence")
        lru = f"{prefix}.rg_lru"
        size = width // spec.heads
        own = self.heads * size
        self.rate = empty_parameter(own, dtype=torch.float32)
        weights.add(f"{lru}.recurrent_param", (width,), self._take_rate)
        self.input_gate, self.input_bias = self._gate(f"{lru}.input_gate", size, context, weights)
        self.forget_gate, self.forget_bias = self._gate(
            f"{lru}.recurrent_gate", size, context, weights
        )
        self.kv_spec = RecurrentState((self.conv.state_part, ((own,), state_dtype(context))))
        self.cache: States | None = None

    def _gate(
        self, prefix: str, size: int, context: BuildContext, weights: WeightMap
    ) -> tuple[nn.Parameter, nn.Parameter]:
        heads = self.spec.heads
        cut = self._group.cut
        weight = empty_parameter(self.heads, size, size, dtype=context.dtype)
        bias = empty_parameter(self.heads, 1, size, dtype=context.dtype)
        weights.add(
            f"{prefix}_weight",
            (heads, size, size),
            lambda tensor: fill(weight.data, cut(tensor, 0)),
        )
        weights.add(
            f"{prefix}_bias", (heads, size), lambda tensor: fill(bias.data, cut(tensor, 0)[:, None])
        )
        return weight, bias

    def _take_rate(self, tensor: torch.Tensor) -> None:
        fill(self.rate.data, self._group.cut(tensor, 0))
        self.rate.data.copy_(-8.0 * F.softplus(self.rate.data))

    def forward(self, x: torch.Tensor, plan: StatePlan) -> torch.Tensor:
        """Return [num_tokens, hidden]; states go to the cache."""
        parts = self.inward(x)
        rows = self.inward.slices
        out = plan.compute(self._segments, parts[:, rows["x"]]).to(x.dtype)
        return self.outward(out * self.activation(parts[:, rows["gate"]]))  # type: ignore[no-any-return]

    def _segments(self, run: Run, fed: torch.Tensor) -> torch.Tensor:
        """Return the recurrence [n, length, width] in float32."""
        assert self.cache is not None, "bind_kv was not called"
        inputs, states = self.cache
        x = self.conv(fed, run, inputs)
        heads = x.reshape(run.count * run.length, self.heads, -1).transpose(0, 1)
        opened, forgotten = (
            torch.baddbmm(bias, heads, weight).transpose(0, 1).reshape(x.shape).float().sigmoid()
            for weight, bias in (
                (self.input_gate, self.input_bias),
                (self.forget_gate, self.forget_bias),
            )
        )
        decay = forgotten * self.rate
        norm = torch.sqrt(1 - (2 * decay).exp())
        # The first token of a sequence, which finds nothing to fade, enters whole.
        norm[:, 0] = torch.where((run.reads == 0)[:, None], 1.0, norm[:, 0])
        out, last = self._sum(x.float() * opened * norm, decay, run.load(states))
        run.store(states, last)
        return out
