"""Attention in Triton: the default on GPUs."""

from collections.abc import Mapping
from typing import Any

from builtin_plugins.attention_backends.common.vllm_names import resolve_vllm_name
from core.api import Entry, hookimpl


@hookimpl
def engine_attention_backends() -> list[Entry]:
    """Return the backend, for devices with a Triton compiler."""
    return [
        Entry(
            "triton",
            "builtin_plugins.attention_backends.triton.backend:TritonAttention",
            "Triton: blocks read in place; decoding shares keys evenly over a grid that fits every "
            "length",
            priority=10,
            when={"triton": [True], "head_size": range(1, 577), "kv_dtype": ["auto"]},
        )
    ]


@hookimpl
def engine_resolve(decisions: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Accept vLLM's name of the backend."""
    return resolve_vllm_name(decisions, "TRITON_ATTN", "triton")
