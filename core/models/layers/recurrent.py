"""RG-LRU layer, and the module of each recurrent spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F
from torch import nn

from core.model_spec.kv import RecurrentState
from core.model_spec.recurrent import (
    GatedConvSpec,
    GatedDeltaSpec,
    LightningSpec,
    Mamba2Spec,
    MambaSpec,
    MLstmSpec,
    RgLruSpec,
    RwkvChannelMixSpec,
    RwkvTimeMixSpec,
)
from core.models.layers.linear import Linear, Slice
from core.models.layers.linear_attention import GatedDelta, Lightning
from core.models.layers.mamba import Mamba, Mamba2
from core.models.layers.mlp import make_activation
from core.models.layers.mlstm import MLstm
from core.models.layers.multi_head_mamba import MultiHeadMamba
from core.models.layers.projected_mamba import ProjectedMamba2
from core.models.layers.rwkv import RwkvChannelMix, RwkvTimeMix
from core.models.layers.short_conv import GatedConv, ShortConv
from core.models.layers.state import state_dtype
from core.models.layers.weights import WeightMap, copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.recurrent import RecurrentSpec, RgLruSpec
    from core.models.layers.state import SegmentGroup, StatePlan, States
    from core.models.layers.weights import WeightMap


class RgLru(nn.Module):
    """RG-LRU of Griffin: a gated linear recurrence after a short convolution.

    Heads are split over ranks. State: the convolution's last inputs and one value per channel.
    """

    def __init__(
        self, spec: RgLruSpec, hidden: int, prefix: str, context: BuildContext, weights: WeightMap
    ) -> None:
        super().__init__()
        self.spec = spec
        width = spec.width
        self._recurrence = context.ops.linear_recurrence
        slices = [
            Slice("x", width, f"{prefix}.linear_x"),
            Slice("gate", width, f"{prefix}.linear_y"),
        ]
        self.in_proj = Linear(
            context, weights, slices[0].prefix, hidden, slices, split="rows", bias=True
        )
        self.activation = make_activation(
            spec.activation, gated=False, prefix=prefix, context=context, weights=weights
        )
        fed = [Slice("x", width)]
        out = [Slice("out", hidden)]
        self.conv = ShortConv(
            fed, spec.kernel, context, weights, f"{prefix}.conv_1d", bias=True, activation=None
        )
        self.out_proj = Linear(
            context, weights, f"{prefix}.linear_out", width, out, split="columns", bias=True
        )
        self._group = context.group
        self.heads = context.group.share(spec.heads, "heads of a recurrence")
        lru = f"{prefix}.rg_lru"
        size = width // spec.heads
        own = self.heads * size
        self.rate = empty_parameter(own, dtype=torch.float32)
        weights.add(f"{lru}.recurrent_param", (width,), self._load_rate)
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
            lambda tensor: copy_weight(weight.data, cut(tensor, 0)),
        )
        weights.add(
            f"{prefix}_bias",
            (heads, size),
            lambda tensor: copy_weight(bias.data, cut(tensor, 0)[:, None]),
        )
        return weight, bias

    def _load_rate(self, tensor: torch.Tensor) -> None:
        copy_weight(self.rate.data, self._group.cut(tensor, 0))
        self.rate.data.copy_(-8.0 * F.softplus(self.rate.data))

    def forward(self, x: torch.Tensor, plan: StatePlan) -> torch.Tensor:
        """Return [num_tokens, hidden]; states go to the cache."""
        parts = self.in_proj(x)
        rows = self.in_proj.slices
        out = plan.compute(self._segments, parts[:, rows["x"]]).to(x.dtype)
        result: torch.Tensor = self.out_proj(out * self.activation(parts[:, rows["gate"]]))
        return result

    def _segments(self, run: SegmentGroup, fed: torch.Tensor) -> torch.Tensor:
        """Return the recurrence's output, [n, length, width] in float32."""
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
        # The first token of a sequence has no state to decay, so it enters unscaled.
        norm[:, 0] = torch.where((run.reads == 0)[:, None], 1.0, norm[:, 0])
        out, last = self._recurrence(x.float() * opened * norm, decay, run.load(states))
        run.store(states, last)
        return out


Recurrent = (
    Mamba
    | MultiHeadMamba
    | Mamba2
    | ProjectedMamba2
    | GatedDelta
    | Lightning
    | GatedConv
    | RgLru
    | RwkvTimeMix
    | RwkvChannelMix
    | MLstm
)
"""A module with `kv_spec`, `cache` (set by `bind_kv`) and `forward(x, plan)`."""

_MODULES: Final[dict[type, Any]] = {
    MambaSpec: Mamba,
    Mamba2Spec: Mamba2,
    GatedDeltaSpec: GatedDelta,
    LightningSpec: Lightning,
    GatedConvSpec: GatedConv,
    RgLruSpec: RgLru,
    RwkvTimeMixSpec: RwkvTimeMix,
    RwkvChannelMixSpec: RwkvChannelMix,
    MLstmSpec: MLstm,
}


def make_recurrent(
    spec: RecurrentSpec, hidden: int, prefix: str, context: BuildContext, weights: WeightMap
) -> Recurrent:
    """Return the module of a spec, with tensors under `prefix`."""
    module: Any = _MODULES[type(spec)]
    if isinstance(spec, MambaSpec) and spec.heads:
        module = MultiHeadMamba
    elif isinstance(spec, Mamba2Spec) and spec.dt_rank:
        module = ProjectedMamba2
    result: Recurrent = module(spec, hidden, prefix, context, weights)
    return result
