"""Attention by torch's fused kernels: the default without a faster backend."""

from collections.abc import Mapping
from typing import Any

from builtin_plugins.attention_backends.common.vllm_names import resolve_vllm_name
from core.api import Entry, hookimpl


@hookimpl
def engine_attention_backends() -> list[Entry]:
    """Return the backend."""
    target = "builtin_plugins.attention_backends.torch_sdpa.backend:TorchAttention"
    return [Entry("torch", target, "torch's fused attention on any device, no kernel to build")]


@hookimpl
def engine_resolve(decisions: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Accept vLLM's name of the backend."""
    return resolve_vllm_name(decisions, "TORCH_SDPA", "torch")
