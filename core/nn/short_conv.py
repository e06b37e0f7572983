"""The short convolution in front of most recurrent layers: each channel with its last few tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from core.nn.weights import empty_parameter, fill

if TYPE_CHECKING:
    from core.contracts import BuildContext
    from core.nn.state import Run
    from core.nn.weights import WeightMap


class ShortConv(nn.Module):
    """What it keeps of a sequence are its last `kernel - 1` inputs: `state_part`, one part of its layer's state.

    `prefix` is that of its tensors or, where a checkpoint has several, how many channels each prefix has. `own` are the
    channels of one such tensor that this rank holds.
    """

    def __init__(
        self,
        channels: int,
        kernel: int,
        context: BuildContext,
        weights: WeightMap,
        prefix: str | Mapping[str, int],
        *,
        bias: bool,
        activate: bool = True,
        own: Sequence[slice] = (),
    ) -> None:
        super().__init__()
        parts = {prefix: channels} if isinstance(prefix, str) else prefix
        assert not own or len(parts) == 1, "channels are chosen of one tensor"
        channels = sum(part.stop - part.start for part in own) or channels
        self.state_part = ((kernel - 1, channels), _dtype(context.conv_state_dtype, context.dtype))
        self._conv, self._activate = context.ops.causal_conv, activate
        self.weight = empty_parameter(kernel, channels, dtype=context.dtype)
        self.bias: nn.Parameter | None
        self.register_parameter("bias", empty_parameter(channels, dtype=context.dtype) if bias else None)
        start = 0
        for name, size in parts.items():
            rows = slice(start, start + (channels if own else size))
            weights.add(f"{name}.weight", (size, 1, kernel), partial(_take, self.weight.data[:, rows].T[:, None], own))
            if self.bias is not None:
                weights.add(f"{name}.bias", (size,), partial(_take, self.bias.data[rows], own))
            start += size

    def forward(self, x: torch.Tensor, run: Run, states: torch.Tensor) -> torch.Tensor:
        """Return [n, length, channels] for the segments of a run; `states` is this part of the layer's cache."""
        out, last = self._conv(x, run.load(states), self.weight, self.bias, self._activate)
        run.store(states, last)
        return out


def _take(target: torch.Tensor, own: Sequence[slice], tensor: torch.Tensor) -> None:
    fill(target, torch.cat([tensor[part] for part in own]) if own else tensor)


def _dtype(chosen: str, dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.") if chosen == "auto" else chosen
