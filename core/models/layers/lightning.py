"""Lightning attention: each head keeps a sum of values by keys that fades at a fixed rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from core.model_spec.kv import RecurrentState
from core.model_spec.parts import NormSpec
from core.models.layers.activation import make_activation
from core.models.layers.linear import Linear, Slice
from core.models.layers.norm import make_norm
from core.models.layers.state import state_dtype

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.model_spec.recurrent import LightningSpec
    from core.models.layers.state import Run, StatePlan, States
    from core.models.layers.weights import WeightMap


class Lightning(nn.Module):
    """One layer, its heads split over ranks. Its state: [heads, value, key]."""

    def __init__(
        self,
        spec: LightningSpec,
        hidden: int,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self.spec = spec
        self._scan = context.ops.ssd_scan  # whose steps are all one here
        width = spec.heads * spec.head_size
        # The checkpoint's rows go by head: its query, its key, its value.
        order = [3 * head + part for part in range(3) for head in range(spec.heads)]
        slices = [Slice(name, width) for name in ("query", "key", "value")]
        self.inward = Linear(
            context, weights, f"{prefix}.qkv_proj", hidden, slices, split="rows", order=order
        )
        self.activation = make_activation(
            spec.activation, gated=False, prefix=prefix, context=context, weights=weights
        )
        gate = [Slice("gate", width)]
        out = [Slice("out", hidden)]
        self.gate = Linear(context, weights, f"{prefix}.output_gate", hidden, gate, split="rows")
        self.norm = make_norm(NormSpec(eps=spec.eps), width, context, weights, f"{prefix}.norm")
        self.outward = Linear(context, weights, f"{prefix}.out_proj", width, out, split="columns")
        self._group = context.group
        self.heads = context.group.share(spec.heads, "heads of a memory")
        self.register_buffer("rates", -self._group.cut(torch.tensor(spec.rates), 0))
        state = (self.heads, spec.head_size, spec.head_size)
        self.kv_spec = RecurrentState(((state, state_dtype(context)),))
        self.cache: States | None = None

    def forward(self, x: torch.Tensor, plan: StatePlan) -> torch.Tensor:
        """Return [num_tokens, hidden]; states go to the cache."""
        out = plan.compute(self._segments, self.activation(self.inward(x))).to(x.dtype)
        out = self._group.cut(self.norm(self._group.all_gather(out)), 1)
        return self.outward(out * self.gate(x).sigmoid())  # type: ignore[no-any-return]

    def _segments(self, run: Run, fed: torch.Tensor) -> torch.Tensor:
        """Return what the memories give, [n, length, width] in float32."""
        assert self.cache is not None, "bind_kv was not called"
        parts = fed.view(run.count, run.length, 3, self.heads, self.spec.head_size)
        query, key, value = parts.unbind(2)
        steps = torch.ones(run.count, run.length, self.heads, device=fed.device)
        out, last = self._scan(value, steps, self.rates, key, query, run.load(self.cache[0]))
        run.store(self.cache[0], last)
        return out.flatten(2)
