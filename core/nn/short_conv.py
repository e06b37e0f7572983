"""The short convolution in front of most recurrent layers: each channel with its last few tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from core.nn.weights import empty_parameter, fill

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.nn.state import Run
    from core.nn.weights import WeightMap


class ShortConv(nn.Module):
    """What it keeps of a sequence are its last `kernel - 1` inputs: `state_part`, one part of its layer's state."""

    def __init__(
        self,
        channels: int,
        kernel: int,
        context: BuildContext,
        weights: WeightMap,
        prefix: str,
        *,
        bias: bool,
        activate: bool = True,
    ) -> None:
        super().__init__()
        self.state_part = ((kernel - 1, channels), _dtype(context.conv_state_dtype, context.dtype))
        self._conv, self._activate = context.ops.causal_conv, activate
        self.weight = empty_parameter(kernel, channels, dtype=context.dtype)
        self.bias: nn.Parameter | None
        self.register_parameter("bias", empty_parameter(channels, dtype=context.dtype) if bias else None)
        weights.add(f"{prefix}.weight", (channels, 1, kernel), lambda tensor: fill(self.weight.data, tensor[:, 0].T))
        if self.bias is not None:
            target = self.bias.data
            weights.add(f"{prefix}.bias", (channels,), lambda tensor: fill(target, tensor))

    def forward(self, x: torch.Tensor, run: Run, states: torch.Tensor) -> torch.Tensor:
        """Return [n, length, channels] for the segments of a run; `states` is this part of the layer's cache."""
        out, last = self._conv(x, run.load(states), self.weight, self.bias, self._activate)
        run.store(states, last)
        return out


def _dtype(chosen: str, dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.") if chosen == "auto" else chosen
