"""Weights of `demo:vision`: the tower's file, and the file of the language model it shares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open

from builtin_plugins.model_sources.demo.plugin import ARCHITECTURE, FOLDER
from core.api import EngineConfig, ModelError
from core.api.models import ModelSource

FILE: Final = "model.safetensors"


class DemoVisionLoader:
    """The tensors of the source's file, and for the demo's tower those of the language model."""

    def __init__(self, source: ModelSource, config: EngineConfig) -> None:
        del config  # files are found by the source
        shared = [FOLDER / FILE] if source.architecture == ARCHITECTURE else []
        self._files = [*shared, Path(source.path or "") / FILE]
        self.reading: Path | None = None
        """File that `tensors` is reading."""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor). Raises `ModelError` for an unreadable file."""
        for path in self._files:
            self.reading = path
            try:
                with safe_open(path, framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118 (no mapping)
                        yield name, file.get_tensor(name)
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{path} cannot be read ({error}). Install it again.") from error

    def headers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, meta tensor): names, dtypes and shapes only."""
        for name, tensor in self.tensors():
            yield name, tensor.to("meta")

    def total_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(path.stat().st_size for path in self._files)
