"""A device. This one is the CPU under another name; describe yours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from core.api import EngineConfig


class Acme:
    """The device. Costs nothing before `start`."""

    name = "acme"
    device = "cpu"

    def is_available(self) -> bool:
        """Say whether this machine has it."""
        return True

    def start(self, config: EngineConfig) -> None:
        """Prepare the process: threads, memory settings."""

    def pick_dtype(self, checkpoint_dtype: str) -> str:
        """Return what `--dtype auto` means for a checkpoint."""
        return "float32" if checkpoint_dtype == "float16" else checkpoint_dtype

    def kv_memory_bytes(self, config: EngineConfig, weight_bytes: int) -> int:
        """Return the bytes the KV cache may take."""
        return config.cache.kv_cache_memory_bytes or 256 * 1024 * 1024

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Return zeroed memory on the device."""
        return torch.zeros(num_bytes, dtype=torch.uint8, device=self.device)

    def facts(self) -> Mapping[str, Any]:
        """Return what entries may ask for in `when`."""
        return {"device": "cpu"}
