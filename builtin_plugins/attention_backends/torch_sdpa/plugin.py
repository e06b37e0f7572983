"""Attention in plain torch, batched and fused: the default where nothing faster is installed."""

from core.api import Entry, hookimpl


@hookimpl
def engine_attention_backends() -> list[Entry]:
    """Return the backend."""
    target = "builtin_plugins.attention_backends.torch_sdpa.backend:TorchAttention"
    return [Entry("torch", target, "torch's fused attention on any device, no kernel to build")]
