"""RWKV 4: time mixing and channel mixing, which both read the token before."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from core.model_spec.kv import RecurrentState
from core.models.layers.linear import Linear, Slice
from core.models.layers.short_conv import input_state_dtype
from core.models.layers.state import state_dtype
from core.models.layers.weights import copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.recurrent import RwkvChannelMixSpec, RwkvTimeMixSpec
    from core.models.layers.state import SegmentGroup, StatePlan, States
    from core.models.layers.weights import WeightMap

NOTHING: Final = -1e38
"""Logarithm of the weight of a sequence without tokens."""


class TokenShift(nn.Module):
    """Mixtures of each token with the one before it, by a learned factor per channel.

    State: the last token.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        hidden: int,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        self.factors = empty_parameter(len(names), hidden, dtype=context.dtype)
        for index, name in enumerate(names):
            weights.add(
                f"{prefix}.time_mix_{name}", (1, 1, hidden), partial(self._load_factor, index)
            )
        self.state_part = ((hidden,), input_state_dtype(context))

    def _load_factor(self, index: int, tensor: torch.Tensor) -> None:
        copy_weight(self.factors.data[index], tensor.view(-1))

    def forward(
        self, x: torch.Tensor, plan: StatePlan, states: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return one mixture [num_tokens, hidden] per name."""
        before = plan.compute(partial(self._previous, states), x)
        return tuple(x * factor + before * (1 - factor) for factor in self.factors)

    def _previous(self, states: torch.Tensor, run: SegmentGroup, x: torch.Tensor) -> torch.Tensor:
        """Return the token before each token of x [n, length, hidden]."""
        last = run.load(states)
        run.store(states, x[:, -1])
        return torch.cat((last[:, None].to(x.dtype), x[:, :-1]), dim=1)


class RwkvTimeMix(nn.Module):
    """Time mixing: an average of the values so far, with exponential weights per channel.

    Channels are split over ranks. State: the last token; numerator and denominator of the average,
    and the logarithm of their common factor.
    """

    def __init__(
        self,
        spec: RwkvTimeMixSpec,
        hidden: int,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        width = spec.width
        self._recurrence = context.ops.linear_recurrence
        self.shift = TokenShift(("key", "value", "receptance"), hidden, prefix, context, weights)
        self.key, self.value, self.receptance = (
            Linear(context, weights, f"{prefix}.{name}", hidden, [Slice(name, width)], split="rows")
            for name in ("key", "value", "receptance")
        )
        self.out_proj = Linear(
            context, weights, f"{prefix}.output", width, [Slice("out", hidden)], split="columns"
        )
        self._group = group = context.group
        own = group.share(width, "channels of time mixing")
        self.decay = empty_parameter(own, dtype=torch.float32)
        self.first = empty_parameter(own, dtype=torch.float32)
        """Logarithm of the additional weight of a token's own value."""
        weights.add(f"{prefix}.time_decay", (width,), self._load_decay)
        weights.add(
            f"{prefix}.time_first",
            (width,),
            lambda tensor: copy_weight(self.first.data, group.cut(tensor, 0)),
        )
        self.kv_spec = RecurrentState((self.shift.state_part, ((3, own), state_dtype(context))))
        self.cache: States | None = None

    def _load_decay(self, tensor: torch.Tensor) -> None:
        copy_weight(self.decay.data, self._group.cut(tensor, 0))
        self.decay.data.exp_().neg_()

    def forward(self, x: torch.Tensor, plan: StatePlan) -> torch.Tensor:
        """Return [num_tokens, hidden]; states go to the cache."""
        assert self.cache is not None, "bind_kv was not called"
        key, value, receptance = self.shift(x, plan, self.cache[0])
        out = plan.compute(self._segments, self.key(key), self.value(value)).to(x.dtype)
        result: torch.Tensor = self.out_proj(self.receptance(receptance).sigmoid() * out)
        return result

    def _segments(self, run: SegmentGroup, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return the averages, [n, length, width] in float32."""
        assert self.cache is not None, "bind_kv was not called"
        key = key.float()
        value = value.float()
        sums = run.load(self.cache[1]).float()
        start = torch.where((run.reads == 0)[:, None], NOTHING, sums[:, 2])
        # Any factor does that keeps the largest weight near one; this is that weight.
        elapsed = torch.arange(run.length + 1, device=key.device)[:, None] * self.decay
        scale = torch.cat((start[:, None], key), dim=1) - elapsed
        scale = scale.cummax(dim=1).values + elapsed
        decay = scale[:, :-1] + self.decay - scale[:, 1:]
        weight = (key - scale[:, 1:]).exp()
        both = torch.cat((weight * value, weight), -1)
        after, last = self._recurrence(both, torch.cat((decay, decay), -1), sums[:, :2].flatten(1))
        before = torch.cat((sums[:, :2].flatten(1)[:, None], after[:, :-1]), dim=1)
        numerator, denominator = before.chunk(2, -1)
        now = key + self.first
        highest = torch.maximum(scale[:, :-1], now)
        earlier = (scale[:, :-1] - highest).exp()
        own = (now - highest).exp()
        states = torch.cat((last, scale[:, -1]), -1).view(run.count, 3, -1)
        run.store(self.cache[1], states)
        return (earlier * numerator + own * value) / (earlier * denominator + own)


class RwkvChannelMix(nn.Module):
    """Channel mixing: a gated MLP with a squared ReLU. State: the last token."""

    def __init__(
        self,
        spec: RwkvChannelMixSpec,
        hidden: int,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        out = [Slice("out", hidden)]
        self.shift = TokenShift(("key", "receptance"), hidden, prefix, context, weights)
        self.key = Linear(
            context, weights, f"{prefix}.key", hidden, [Slice("key", spec.width)], split="rows"
        )
        self.value = Linear(context, weights, f"{prefix}.value", spec.width, out, split="columns")
        self.receptance = Linear(context, weights, f"{prefix}.receptance", hidden, out)
        self.kv_spec = RecurrentState((self.shift.state_part,))
        self.cache: States | None = None

    def forward(self, x: torch.Tensor, plan: StatePlan) -> torch.Tensor:
        """Return [num_tokens, hidden]; states go to the cache."""
        assert self.cache is not None, "bind_kv was not called"
        key, receptance = self.shift(x, plan, self.cache[0])
        out: torch.Tensor = self.value(self.key(key).relu().square())
        return self.receptance(receptance).sigmoid() * out  # type: ignore[no-any-return]
