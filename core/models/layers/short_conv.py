"""Short causal convolution over the last few tokens of each channel, and LFM2's gated form."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from core.model_spec.kv import RecurrentState
from core.models.dtypes import dtype_name
from core.models.layers.linear import Linear, Slice
from core.models.layers.mlp import Activation, make_activation
from core.models.layers.weights import copy_weight, empty_parameter

if TYPE_CHECKING:
    from core.contracts.models import BuildContext
    from core.model_spec.recurrent import GatedConvSpec
    from core.models.layers.linear import Slice
    from core.models.layers.state import SegmentGroup, StatePlan, States
    from core.models.layers.weights import WeightMap


ChannelMap = tuple[slice, slice]
"""This rank's channels, and their rows in a checkpoint tensor."""


class ShortConv(nn.Module):
    """Causal convolution per channel, of every `dilation`-th token; its state (`state_part`) is
    the last `(kernel - 1) * dilation` inputs.

    `slices` are the channels, split over ranks. Slices without their own prefix are in one tensor
    under `prefix`. The op has SiLU; another activation is computed after it.
    """

    def __init__(
        self,
        slices: Sequence[Slice],
        kernel: int,
        context: BuildContext,
        weights: WeightMap,
        prefix: str,
        *,
        bias: bool,
        activation: str | None = "silu",
        dilation: int = 1,
    ) -> None:
        super().__init__()
        own = [context.group.own(part.size, part.parts) for part in slices]
        channels = sum(rows.stop - rows.start for rows in own)
        self.state_part = (((kernel - 1) * dilation, channels), input_state_dtype(context))
        self._dilation = dilation
        self._conv = context.ops.causal_conv
        self._has_silu = activation == "silu"
        self._activate: Activation | None = None
        if activation is not None and not self._has_silu:
            self._activate = make_activation(
                activation, gated=False, prefix=prefix, context=context, weights=weights
            )
        self.weight = empty_parameter(kernel, channels, dtype=context.dtype)
        self.bias: nn.Parameter | None
        self.register_parameter(
            "bias", empty_parameter(channels, dtype=context.dtype) if bias else None
        )
        channel_maps: dict[str, list[ChannelMap]] = {}
        total: dict[str, int] = {}
        start = 0
        for part, rows in zip(slices, own, strict=True):
            name = part.prefix or prefix
            end = start + rows.stop - rows.start
            before = total.get(name, 0)
            channel_maps.setdefault(name, []).append(
                (slice(start, end), slice(before + rows.start, before + rows.stop))
            )
            total[name] = before + part.size
            start = end
        for name, size in total.items():
            weights.add(
                f"{name}.weight",
                (size, 1, kernel),
                partial(_load_channels, self.weight.data.T[:, None], channel_maps[name]),
            )
            if self.bias is not None:
                weights.add(
                    f"{name}.bias",
                    (size,),
                    partial(_load_channels, self.bias.data, channel_maps[name]),
                )

    def forward(self, x: torch.Tensor, run: SegmentGroup, states: torch.Tensor) -> torch.Tensor:
        """Return [n, length, channels] for the segments of a run; `states` is this part of the
        layer's cache.
        """
        before = run.load(states)
        out, last = self._conv(x, before, self.weight, self.bias, self._has_silu, self._dilation)
        run.store(states, last)
        return out if self._activate is None else self._activate(out)


def _load_channels(
    target: torch.Tensor, channel_maps: Sequence[ChannelMap], tensor: torch.Tensor
) -> None:
    for to, rows in channel_maps:
        copy_weight(target[to], tensor[rows])


def input_state_dtype(context: BuildContext) -> str:
    """Return the dtype of a state of earlier inputs."""
    chosen = context.conv_state_dtype
    return dtype_name(context.dtype) if chosen == "auto" else chosen


class GatedConv(nn.Module):
    """Short convolution between two gates (LFM2), its channels split over ranks.

    State: the convolution's last inputs.
    """

    def __init__(
        self,
        spec: GatedConvSpec,
        hidden: int,
        prefix: str,
        context: BuildContext,
        weights: WeightMap,
    ) -> None:
        super().__init__()
        slices = [Slice(name, hidden) for name in ("before", "after", "x")]
        self.in_proj = Linear(
            context, weights, f"{prefix}.in_proj", hidden, slices, split="rows", bias=spec.bias
        )
        self.conv = ShortConv(
            slices[2:],
            spec.kernel,
            context,
            weights,
            f"{prefix}.conv",
            bias=spec.bias,
            activation=None,
        )
        out = [Slice("out", hidden)]
        self.out_proj = Linear(
            context, weights, f"{prefix}.out_proj", hidden, out, split="columns", bias=spec.bias
        )
        self.kv_spec = RecurrentState((self.conv.state_part,))
        self.cache: States | None = None

    def forward(self, x: torch.Tensor, plan: StatePlan) -> torch.Tensor:
        """Return [num_tokens, hidden]; states go to the cache."""
        before, after, x = self.in_proj(x).chunk(3, -1)
        result: torch.Tensor = self.out_proj(after * plan.compute(self._segments, before * x))
        return result

    def _segments(self, run: SegmentGroup, fed: torch.Tensor) -> torch.Tensor:
        assert self.cache is not None, "bind_kv was not called"
        return self.conv(fed, run, self.cache[0])  # type: ignore[no-any-return]
