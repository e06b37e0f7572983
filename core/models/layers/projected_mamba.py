"""Mamba 2 with projections to dt, B and C after the convolution, as in Mamba (PLaMo 2)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from core.model_spec.kv import RecurrentState
from core.models.layers.linear import Linear, Slice
from core.models.layers.norm import make_norm
from core.models.layers.short_conv import ShortConv
from core.models.layers.state import state_dtype
from core.models.layers.weights import copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.recurrent import Mamba2Spec
    from core.models.layers.state import SegmentGroup, StatePlan, States
    from core.models.layers.weights import WeightMap


class ProjectedMamba2(nn.Module):
    """Heads are split over ranks. State: the convolution's last inputs and [heads, head_size,
    state_size].
    """

    def __init__(
        self, spec: Mamba2Spec, hidden: int, prefix: str, context: BuildContext, weights: WeightMap
    ) -> None:
        super().__init__()
        self.spec = spec
        self._scan = context.ops.ssd_scan
        self._group = context.group
        self.heads = context.group.share(spec.heads, "heads of a state space")
        width = spec.width
        both = [Slice("gate", width), Slice("x", width)]
        # Checkpoint rows alternate: a head's gate, its input.
        order = [2 * head + part for part in range(2) for head in range(spec.heads)]
        self.in_proj = Linear(
            context, weights, f"{prefix}.in_proj", hidden, both, split="rows", order=order
        )
        self.conv = ShortConv(
            both[1:], spec.kernel, context, weights, f"{prefix}.conv1d", bias=spec.conv_bias
        )
        sizes = {"B": spec.state_size, "C": spec.state_size, "dt": spec.dt_rank}
        three = [Slice(name, size) for name, size in sizes.items()]
        self.choose = Linear(context, weights, f"{prefix}.bcdt_proj", width, three, split="columns")
        assert spec.norm is not None, "dt, B and C are normalised"
        self.norms = nn.ModuleList(
            make_norm(spec.norm, size, context, weights, f"{prefix}.{name}_norm")
            for name, size in sizes.items()
        )
        step = [Slice("step", spec.heads)]
        self.step = Linear(context, weights, f"{prefix}.dt_proj", spec.dt_rank, step, split="rows")
        out = [Slice("out", hidden)]
        self.out_proj = Linear(context, weights, f"{prefix}.out_proj", width, out, split="columns")
        self.step_bias, self.decay, self.skip = (
            empty_parameter(self.heads, dtype=torch.float32) for _ in range(3)
        )
        names = {"dt_bias": self.step_bias, "A_log": self.decay, "D": self.skip}
        for name, parameter in names.items():
            weights.add(f"{prefix}.{name}", (spec.heads,), partial(self._load_own, parameter))
        weights.change(f"{prefix}.A_log", lambda tensor: -tensor.float().exp())
        state = (self.heads, spec.head_size, spec.state_size)
        self.kv_spec = RecurrentState((self.conv.state_part, (state, state_dtype(context))))
        self.cache: States | None = None

    def _load_own(self, parameter: nn.Parameter, tensor: torch.Tensor) -> None:
        copy_weight(parameter.data, self._group.cut(tensor, 0))

    def forward(self, x: torch.Tensor, plan: StatePlan) -> torch.Tensor:
        """Return [num_tokens, hidden]; states go to the cache."""
        parts = self.in_proj(x)
        rows = self.in_proj.slices
        out = plan.compute(self._segments, parts[:, rows["x"]])
        gate = F.silu(parts[:, rows["gate"]].float())
        return self.out_proj((out * gate).to(x.dtype))  # type: ignore[no-any-return]

    def _segments(self, run: SegmentGroup, fed: torch.Tensor) -> torch.Tensor:
        """Return the scan output, [n, length, width] in float32."""
        assert self.cache is not None, "bind_kv was not called"
        inputs, states = self.cache
        seen = self.conv(fed, run, inputs)
        chosen = self.choose(seen, run.tokens)
        parts = zip(self.norms, self.choose.slices.values(), strict=True)
        write, read, step = (norm(chosen[..., rows]) for norm, rows in parts)
        step = F.softplus(self.step(step, run.tokens).float() + self.step_bias)
        x = seen.view(run.count, run.length, self.heads, -1)
        out, last = self._scan(
            x, step, self.decay, write[:, :, None], read[:, :, None], run.load(states)
        )
        run.store(states, last)
        result: torch.Tensor = (out + x.float() * self.skip[:, None]).flatten(2)
        return result
