"""The short convolution in front of most recurrent layers: each channel with its last few tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from core.models.layers.weights import empty_parameter, fill

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.models.layers.linear import Slice
    from core.models.layers.state import Run
    from core.models.layers.weights import WeightMap

Place = tuple[slice, slice]
"""Channels of ours, and those of a checkpoint's tensor that they are."""


class ShortConv(nn.Module):
    """What it keeps of a sequence are its last `kernel - 1` inputs: `state_part`, one part of its
    layer's state.

    `slices` are the channels, split over ranks. Those without a prefix of their own are in one
    tensor under `prefix`.
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
        activate: bool = True,
    ) -> None:
        super().__init__()
        own = [context.group.own(part.size, part.parts) for part in slices]
        channels = sum(rows.stop - rows.start for rows in own)
        self.state_part = ((kernel - 1, channels), _dtype(context.conv_state_dtype, context.dtype))
        self._conv = context.ops.causal_conv
        self._activate = activate
        self.weight = empty_parameter(kernel, channels, dtype=context.dtype)
        self.bias: nn.Parameter | None
        self.register_parameter(
            "bias", empty_parameter(channels, dtype=context.dtype) if bias else None
        )
        places: dict[str, list[Place]] = {}
        total: dict[str, int] = {}
        start = 0
        for part, rows in zip(slices, own, strict=True):
            name = part.prefix or prefix
            end = start + rows.stop - rows.start
            before = total.get(name, 0)
            places.setdefault(name, []).append(
                (slice(start, end), slice(before + rows.start, before + rows.stop))
            )
            total[name], start = before + part.size, end
        for name, size in total.items():
            weights.add(
                f"{name}.weight",
                (size, 1, kernel),
                partial(_take, self.weight.data.T[:, None], places[name]),
            )
            if self.bias is not None:
                weights.add(f"{name}.bias", (size,), partial(_take, self.bias.data, places[name]))

    def forward(self, x: torch.Tensor, run: Run, states: torch.Tensor) -> torch.Tensor:
        """Return [n, length, channels] for the segments of a run; `states` is this part of the
        layer's cache.
        """
        out, last = self._conv(x, run.load(states), self.weight, self.bias, self._activate)
        run.store(states, last)
        return out


def _take(target: torch.Tensor, places: Sequence[Place], tensor: torch.Tensor) -> None:
    for to, rows in places:
        fill(target[to], tensor[rows])


def _dtype(chosen: str, dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.") if chosen == "auto" else chosen
