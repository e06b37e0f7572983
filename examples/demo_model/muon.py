"""Muon: momentum with orthogonalized matrix updates.

Small models learn from far fewer tokens with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor, nn

_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
_ROUNDS: Final = 5


class Muon(torch.optim.Optimizer):
    """For the matrices of layers; embeddings and norms take another optimizer."""

    def __init__(
        self, matrices: Iterable[nn.Parameter], lr: float = 0.02, momentum: float = 0.95
    ) -> None:
        super().__init__(list(matrices), {"lr": lr, "momentum": momentum, "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Move every matrix against its orthogonalised momentum; equal shapes are computed
        together.
        """
        for group in self.param_groups:
            shaped: dict[torch.Size, list[tuple[nn.Parameter, Tensor]]] = defaultdict(list)
            for parameter in group["params"]:
                state = self.state[parameter]
                average = state.setdefault("average", torch.zeros_like(parameter))
                average.lerp_(parameter.grad, 1 - group["momentum"])
                shaped[parameter.shape].append(
                    (parameter, parameter.grad.lerp(average, group["momentum"]))
                )
            for shape, pairs in shaped.items():
                updates = orthogonal(torch.stack([update for _, update in pairs]))
                rate = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for (parameter, _), update in zip(pairs, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update.to(parameter.dtype), alpha=-rate)


def orthogonal(matrices: Tensor) -> Tensor:
    """Return the nearest matrices with singular values of about one. matrices: [count, rows,
    columns]
    """
    a, b, c = _COEFFICIENTS
    x: Tensor = matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_ROUNDS):
        square = x @ x.transpose(1, 2)
        x = a * x + (b * square + c * square @ square) @ x
    return x.transpose(1, 2) if tall else x
