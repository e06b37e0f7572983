"""Attention that reads keys and values where they lie: the default on CPUs."""

from collections.abc import Mapping
from typing import Any

from builtin_plugins.attention_backends.common.names import called
from core.api import Entry, hookimpl


@hookimpl
def engine_attention_backends() -> list[Entry]:
    """Return the backend, for models whose layers it computes."""
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
    """Take the name that vLLM has for such a backend."""
    return called(decisions, "CPU_ATTN", "paged")
