"""A runner extension: soft-caps the logits of every row."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from core.api.sampling import SampleRows


class Acme:
    """Called in device order on every rank. All methods of `RunnerExtension` are optional."""

    name = "acme"

    def __init__(self, cap: float) -> None:
        self._cap = cap

    def before_sample(
        self, logits: torch.Tensor, rows: SampleRows, payload: bytes | None
    ) -> torch.Tensor:
        """Return the logits [rows, vocab] to sample from.

        `payload` comes from the feature's scheduler extension.
        """
        return (logits / self._cap).tanh() * self._cap
