"""A platform: describes a device. This one is the CPU under another name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from core.api import EngineConfig


class Acme:
    """The device. Creating it is free of side effects; `start` initializes the process."""

    name = "acme"
    device = "cpu"

    def is_available(self) -> bool:
        """Return whether this machine has the device."""
        return True

    def start(self, config: EngineConfig) -> None:
        """Initialize the process: threads, memory settings."""

    def pick_dtype(self, checkpoint_dtype: str) -> str:
        """Return the dtype that `--dtype auto` selects for a checkpoint."""
        return "float32" if checkpoint_dtype == "float16" else checkpoint_dtype

    def kv_memory_bytes(self, config: EngineConfig, weight_bytes: int) -> int:
        """Return the KV cache memory in bytes."""
        return config.cache.kv_cache_memory_bytes or 256 * 1024 * 1024

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Return zeroed device memory."""
        return torch.zeros(num_bytes, dtype=torch.uint8, device=self.device)

    def facts(self) -> Mapping[str, Any]:
        """Return the facts that entries may require in `when`."""
        return {"device": "cpu"}
