"""Attention in plain torch, batched and fused: the default where nothing faster is installed."""

from collections.abc import Mapping
from typing import Any

from builtin_plugins.attention_backends.common.names import called
from core.api import Entry, hookimpl


@hookimpl
def engine_attention_backends() -> list[Entry]:
    """Return the backend."""
    target = "builtin_plugins.attention_backends.torch_sdpa.backend:TorchAttention"
    return [Entry("torch", target, "torch's fused attention on any device, no kernel to build")]


@hookimpl
def engine_resolve(decisions: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Take the name that vLLM has for such a backend."""
    return called(decisions, "TORCH_SDPA", "torch")
