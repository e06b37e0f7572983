"""Weight loader for models that make their weights themselves, or have none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from core.config import EngineConfig
from core.contracts import ModelSource

if TYPE_CHECKING:
    import torch


class NoWeights:
    """Yields nothing; a plugin names it as `core.models.layers.no_weights:NoWeights`."""

    def __init__(self, source: ModelSource, config: EngineConfig) -> None:
        pass

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield nothing."""
        return iter(())

    def total_bytes(self) -> int:
        """Return 0."""
        return 0
