"""A weight loader: yields a checkpoint's tensors by name. This one reads `*.pt` files that hold dictionaries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from core.api import EngineConfig, ModelError, ModelSource


class Acme:
    """Reads the files in the order of their names, mapped into memory."""

    def __init__(self, source: ModelSource, config: EngineConfig) -> None:
        self._files = sorted(Path(source.path or ".").glob("*.pt"))
        self._folder = source.path

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor). Raises `ModelError` naming the file that cannot be read."""
        if not self._files:
            raise ModelError(f"{self._folder} holds no .pt file; convert the checkpoint or use --load-format auto.")
        for file in self._files:
            try:
                tensors = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
            except Exception as error:
                raise ModelError(f"{file} cannot be read: {error}. Fetch or convert it again.") from error
            yield from tensors.items()

    def total_bytes(self) -> int:
        """Return the size of the files."""
        return sum(file.stat().st_size for file in self._files)
