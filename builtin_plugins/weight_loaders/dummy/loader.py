"""Random weights as a function of the seed and each tensor's name. Reads no file."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from math import prod

import torch

from core.api import EngineConfig
from core.api.models import ModelSource


class DummyLoader:
    """Generates random tensors of the model's shapes."""

    def __init__(self, source: ModelSource, config: EngineConfig) -> None:
        del source
        self._seed = config.model.seed
        self._shapes: Mapping[str, tuple[int, ...]] = {}

    def expect(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Set the names and shapes of the tensors to generate; called before `tensors`."""
        self._shapes = shapes

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor): variance-preserving matrices, norms near 1, small biases."""
        for name, shape in self._shapes.items():
            generator = torch.Generator().manual_seed(
                (self._seed ^ zlib.crc32(name.encode())) & (2**63 - 1)
            )
            noise = torch.empty(shape).uniform_(-1, 1, generator=generator)
            if len(shape) > 1:
                yield name, noise.mul_((3 / shape[-1]) ** 0.5)
            else:
                yield name, noise.mul_(0.1).add_(1.0 if name.endswith("weight") else 0.0)

    def total_bytes(self) -> int:
        """Return the bytes of all tensors."""
        return 4 * sum(prod(shape) for shape in self._shapes.values())
