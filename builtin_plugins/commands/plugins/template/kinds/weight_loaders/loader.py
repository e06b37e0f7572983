"""A weight loader: yields a checkpoint's tensors by name.

This one reads each safetensors file completely, without memory mapping.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load

from core.api import EngineConfig, ModelError
from core.api.models import ModelSource

if TYPE_CHECKING:
    import torch


class Acme:
    """Reads the files in name order."""

    def __init__(self, source: ModelSource, config: EngineConfig) -> None:
        self._folder = Path(source.path or ".")
        self._files = sorted(self._folder.glob("*.safetensors"))

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor). Raises `ModelError` naming an unreadable file."""
        if not self._files:
            raise ModelError(
                f"{self._folder} holds no .safetensors file; convert the checkpoint or use another "
                "loader."
            )
        for file in self._files:
            try:
                tensors = load(file.read_bytes())
            except (OSError, SafetensorError) as error:
                raise ModelError(
                    f"{file} cannot be read: {error}. Fetch or convert it again."
                ) from error
            yield from tensors.items()

    def total_bytes(self) -> int:
        """Return the total file size in bytes."""
        return sum(file.stat().st_size for file in self._files)
