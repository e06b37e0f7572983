"""Attention over KV blocks in C++: the default on CPUs."""

from collections.abc import Mapping
from typing import Any

from builtin_plugins.attention_backends.common.vllm_names import resolve_vllm_name
from core.api import Entry, hookimpl


@hookimpl
def engine_attention_backends() -> list[Entry]:
    """Return the backend, for layers without a distance bias."""
    return [
        Entry(
            "paged",
            "builtin_plugins.attention_backends.paged.backend:make_backend",
            "C++: blocks read in place; a token's result depends on its own sequence alone",
            priority=10,
            when={"device": "cpu", "distance_bias": [False]},
        )
    ]


@hookimpl
def engine_resolve(decisions: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Accept vLLM's name of the backend."""
    return resolve_vllm_name(decisions, "CPU_ATTN", "paged")
