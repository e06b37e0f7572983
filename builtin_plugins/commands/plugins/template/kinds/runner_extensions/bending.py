"""Bends the logits of every row: what stands out too far comes nearer to the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from core.api import SampleRows


class Acme:
    """Called in the order of the device's work; reads nothing back.

    Every method of `RunnerExtension` is optional.
    """

    name = "acme"

    def __init__(self, cap: float) -> None:
        self._cap = cap

    def before_sample(
        self, logits: torch.Tensor, rows: SampleRows, payload: bytes | None
    ) -> torch.Tensor:
        """Return the logits to sample from, [points, vocab]; `payload` is what a scheduler half
        sent with the plan.
        """
        return (logits / self._cap).tanh() * self._cap
